"""Means of several draws, by hand."""

from __future__ import annotations

import pytest

from distkv.sim.papers.draws import MOST, interval, paired


def test_an_interval_is_student_s() -> None:
    """1, 2, 3 have a deviation of 1: 2 plus and minus 4.303 / sqrt(3)."""
    assert interval([1.0, 2.0, 3.0]) == (pytest.approx(-0.4844, abs=1e-3), pytest.approx(4.4844, abs=1e-3))
    assert interval([1.0, 1.0]) == (1.0, 1.0)
    assert interval([0.0, 2.0] * (MOST // 2))[1] < 2


def test_ratios_are_of_the_same_draws() -> None:
    assert paired([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    with pytest.raises(ValueError, match="longer"):
        paired([1.0], [1.0, 2.0])
