"""Curves and lines through points of which some were disturbed."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distkv.bench.profiling.fitting import LEAST_S, curve_of, line_through, remote_of


def test_points_that_rise_are_the_curve() -> None:
    points = [(4, 3.0), (1, 1.0), (2, 1.0)]
    assert [(point.size, point.seconds) for point in curve_of(points)] == sorted(points)


@pytest.mark.parametrize(
    ("seconds", "found"),
    [
        ([36, 20, 22, 23, 28], [20, 20, 22, 23, 28]),
        ([20, 21, 90, 23, 28], [20, 21, 23, 23, 28]),
        ([20, 21, 5, 23, 28], [20, 20, 20, 23, 28]),
        ([20, 21, 22, 23, 1], [20, 21, 22, 22, 22]),
    ],
)
def test_one_that_was_disturbed_decides_nothing_for_others(seconds: list[float], found: list[float]) -> None:
    assert [point.seconds for point in curve_of(enumerate(seconds, 1))] == found


@given(st.dictionaries(st.integers(1, 100), st.floats(-1, 10), min_size=1))
def test_no_curve_falls_and_every_size_is_in_it(points: dict[int, float]) -> None:
    curve = curve_of(points.items())
    assert [point.size for point in curve] == sorted(points)
    assert all(before.seconds <= after.seconds for before, after in pairwise(curve)) and curve[0].seconds >= LEAST_S


def test_a_line_and_what_local_attention_hides() -> None:
    assert line_through([(0, 1.0), (1, 3.0), (2, 5.0), (3, 70.0)]) == (1.0, 2.0)
    waits = [(16, 0.0), (512, 0.5), (1024, 1.0), (2048, 2.0)]
    found = remote_of(waits, 0.25)
    assert found.token_s == pytest.approx(0.5 / 512) and found.trip_s == pytest.approx(0.25)
