from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distkv.control.performance.curve import CurveFunction
from distkv.wire.messages.profile import Point
from tests.control.performance.profiles import curves

POINTS = (Point(10, 2.0), Point(20, 3.0), Point(40, 3.5))
sizes = st.floats(0, 2**24)


@pytest.mark.parametrize(
    ("size", "work", "step"),
    [(0, 0, 2), (5, 1, 2), (10, 2, 2), (15, 2.5, 2.5), (20, 3, 3), (30, 3.25, 3.25), (40, 3.5, 3.5), (80, 7, 4.5)],
)
def test_between_points_it_is_linear(size: float, work: float, step: float) -> None:
    assert CurveFunction(POINTS, of_work=True)(size) == pytest.approx(work)
    assert CurveFunction(POINTS, of_work=False)(size) == pytest.approx(step)


def test_one_point_goes_on_in_proportion() -> None:
    for of_work in (True, False):
        assert CurveFunction((Point(4, 2.0),), of_work=of_work)(12) == pytest.approx(6.0)
    assert CurveFunction((Point(4, 2.0),), of_work=False)(1) == 2.0


def test_steps_that_fall_do_not_go_on_falling() -> None:
    falling = CurveFunction((Point(1, 15.0), Point(2, 18.0), Point(4, 14.0)), of_work=False)
    assert [falling(size) for size in (1, 2, 3, 4, 40)] == [15, 18, 16, 14, 14]


@settings(deadline=None)
@given(points=curves, of_work=st.booleans(), first=sizes, second=sizes)
def test_it_never_falls_and_meets_its_points(
    points: tuple[Point, ...], of_work: bool, first: float, second: float
) -> None:
    function = CurveFunction(points, of_work=of_work)
    less, more = sorted((first, second))
    assert 0 <= function(less) <= function(more) * (1 + 1e-9)
    for point in points:
        assert function(point.size) == pytest.approx(point.seconds)
