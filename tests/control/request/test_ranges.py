"""Ranges against a set of positions."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distkv.control.request.ranges import Ranges

POSITIONS = st.integers(0, 30)
CALLS = st.lists(st.tuples(st.booleans(), POSITIONS, POSITIONS), max_size=20)


def positions(ranges: Ranges) -> set[int]:
    return {position for start, end in ranges for position in range(start, end)}


@given(CALLS)
def test_like_a_set(calls: list[tuple[bool, int, int]]) -> None:
    ranges, model = Ranges(), set[int]()
    for adds, a, b in calls:
        if adds:
            ranges.add(a, b)
            model |= set(range(a, b))
        else:
            ranges.remove(a, b)
            model -= set(range(a, b))
        assert positions(ranges) == model
    found = list(ranges)
    assert all(a < b for a, b in found)
    assert all(end_before < start_after for (_, end_before), (start_after, _) in pairwise(found))
    assert len(ranges) == len(model)
    assert bool(ranges) == bool(model)
    if model:
        assert ranges.first[0] == min(model)
    assert ranges == Ranges(reversed(found))


def test_touching_ranges_are_one() -> None:
    assert list(Ranges([(4, 6), (0, 2), (2, 4)])) == [(0, 6)]
    assert Ranges([(3, 3)]) == Ranges()
    assert repr(Ranges([(1, 2)])) == "Ranges([(1, 2)])"


def test_the_only_position_advances() -> None:
    ranges = Ranges([(7, 8)])
    ranges.advance(7, 20)
    assert list(ranges) == [(27, 28)]
    for wrong in (Ranges([(7, 9)]), Ranges([(7, 8), (9, 10)]), Ranges()):
        with pytest.raises(AssertionError, match="is not all of"):
            wrong.advance(7, 1)
