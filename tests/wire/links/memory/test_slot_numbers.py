"""Numbers of rBlocks as arrays."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest

from distkv.wire.links.memory import slot_numbers
from distkv.wire.links.memory.pool_memory import slots_problem
from distkv.wire.links.memory.slot_numbers import FEW, bounds_of, numbers_of, places_at
from distkv.wire.links.memory.slot_views import SlotViews


@pytest.mark.parametrize("slots", [range(3, 9), (7, 3, 5), [2] * (FEW + 5), range(1, 2 * FEW)])
def test_they_are_made_once(slots: Sequence[int]) -> None:
    numbers = numbers_of(slots)
    assert numbers.tolist() == list(slots)
    assert numbers_of(numbers) is numbers
    assert bounds_of(numbers) == bounds_of(slots) == (min(slots), max(slots))


@pytest.fixture(params=["native", "without a library"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without a library":
        monkeypatch.setattr(slot_numbers, "native", lambda _name: None)


@pytest.mark.parametrize("count", [1, FEW, FEW + 1, 1000])
def test_bounds_and_places_of_few_and_of_many(library: None, count: int) -> None:
    numbers = array("q", [(7 * number) % 1009 - 3 for number in range(count)])
    assert bounds_of(numbers) == (min(numbers), max(numbers))
    assert places_at(2**40, numbers, 4096).tolist() == [2**40 + 4096 * number for number in numbers]


def test_arrays_of_other_numbers_become_int64() -> None:
    assert numbers_of(array("i", [4, 5])) == array("q", [4, 5])


@pytest.mark.parametrize("wrong", [-1, 100, 2**63, -(2**70)])
@pytest.mark.parametrize("count", [1, FEW + 5])
def test_a_slot_that_is_not_there_is_named_whatever_number_it_is(wrong: int, count: int) -> None:
    slots = [*range(count - 1), wrong]
    assert f"slot {wrong} is outside" in slots_problem(slots, 100)
    with pytest.raises(ValueError, match=str(wrong)):
        SlotViews(memoryview(bytearray(400)), 4, slots)
