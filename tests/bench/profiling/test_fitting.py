"""Curves and lines through points of which some were disturbed."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distkv.bench.profiling.fitting import LEAST_S, curve_of, least_squares, line_through, remote_of, steps_of


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


def test_least_squares_begin_at_nothing_or_above() -> None:
    assert least_squares([(16, 1.0), (512, 2.0), (1008, 3.0)]) == pytest.approx((1 - 16 / 496, 1 / 496))
    assert least_squares([(0, 1.0), (1, 3.0), (2, 2.0)]) == pytest.approx((1.5, 0.5))
    assert least_squares([(1, 0.0), (2, 3.0)]) == pytest.approx((0.0, 6 / 5))
    assert least_squares([(1, 2.0), (2, 1.0)]) == (1.5, LEAST_S)
    assert least_squares([(1, -2.0), (2, -1.0)]) == (0.0, LEAST_S)


def test_a_step_of_more_sequences_may_take_less_time() -> None:
    points = [(4, 14.0), (1, 15.0), (2, 18.0), (8, -1.0)]
    assert [(point.size, point.seconds) for point in steps_of(points)] == [(1, 15), (2, 18), (4, 14), (8, LEAST_S)]


def test_a_line_and_what_local_attention_hides() -> None:
    assert line_through([(0, 1.0), (1, 3.0), (2, 5.0), (3, 70.0)]) == (1.0, 2.0)
    waits = [(16, 0.0), (512, 0.5), (1024, 1.0), (2048, 2.0)]
    found = remote_of(waits, 0.25)
    assert found.token_s == pytest.approx(0.5 / 512) and found.trip_s == pytest.approx(0.25)
