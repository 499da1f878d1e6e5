"""RecentPeak: the largest that a number was within a window."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from distkv.recent_peak import RecentPeak


def test_what_it_was_counts_until_the_window_is_over() -> None:
    peak = RecentPeak(10.0)
    assert peak.look(5, 0.0) == 5
    assert peak.look(3, 4.0) == 5, "it was 5 up to now"
    assert peak.look(3, 13.9) == 5
    assert peak.look(3, 14.0) == 3
    assert peak.look(9, 15.0) == 9 and peak.look(1, 16.0) == 9


def test_it_is_the_largest_of_all_looks_within_the_window() -> None:
    random, looks, peak, now = Random(3), list[tuple[float, int]](), RecentPeak(8.0), 0.0
    for _ in range(2_000):
        now += random.choice((0.0, 0.5, 3.0))
        value = random.randrange(1, 6)
        # A value holds until the look that finds another one.
        held = [(until, before) for (_, before), (until, _) in pairwise([*looks, (now, value)])]
        expected = max([value, *(before for until, before in held if now - until < 8.0)])
        assert peak.look(value, now) == expected
        looks.append((now, value))


def test_what_falls_and_rises_for_ever_is_forgotten() -> None:
    peak = RecentPeak(5.0)
    for step in range(10_000):
        peak.look(step % 7, step * 0.001)
    assert len(peak._before) <= 7
