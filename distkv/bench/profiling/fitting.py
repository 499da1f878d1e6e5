"""Curves and lines through what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

import msgspec

from distkv.wire.messages.profile import Point

LEAST_S = 1e-9
HIDDEN = 0.05
"""Waits below this share of the local attention may be none at all."""


class Remote(msgspec.Struct, frozen=True):
    """Seconds until partials come, in all layers: without a span, and for each token of one."""

    trip_s: float
    token_s: float


def steps_of(points: Iterable[tuple[int, float]]) -> tuple[Point, ...]:
    """By batch, as measured: a larger batch may take less time, where products with few rows are slow."""
    return tuple(Point(size, max(LEAST_S, seconds)) for size, seconds in sorted(points))


def curve_of(points: Iterable[tuple[int, float]]) -> tuple[Point, ...]:
    """By size. Where it would fall, all that disagree are taken to take what the middle one of them does, so that one
    that was disturbed decides nothing for others."""
    sizes: list[int] = []
    pools: list[list[float]] = []
    for size, seconds in sorted(points):
        sizes.append(size)
        pools.append([max(LEAST_S, seconds)])
        while len(pools) > 1 and statistics.median_low(pools[-2]) > statistics.median_low(pools[-1]):
            falling = pools.pop()
            pools[-1] += falling
    values = [statistics.median_low(pool) for pool in pools for _ in pool]
    return tuple(Point(size, seconds) for size, seconds in zip(sizes, values, strict=True))


def line_through(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """What a line through these points is at 0, and how it rises; medians of medians, so that one of four that was
    disturbed does not count (Siegel). points: at least two."""
    slopes = (
        statistics.median((other_s - seconds) / (other - size) for other, other_s in points if other != size)
        for size, seconds in points
    )
    rise = max(LEAST_S, statistics.median(slopes))
    return max(0.0, statistics.median(seconds - rise * size for size, seconds in points)), rise


def least_squares(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """As line_through, of points none of which is trusted or doubted more than the others. points: at least two, of
    different sizes."""
    sizes, seconds = zip(*points, strict=True)
    rise, first = statistics.linear_regression(sizes, seconds)
    if first < 0:
        first, rise = 0.0, statistics.linear_regression(sizes, seconds, proportional=True).slope
    elif rise < 0:
        first = statistics.fmean(seconds)
    return max(0.0, first), max(LEAST_S, rise)


def remote_of(waits: Sequence[tuple[int, float]], hidden_s: float) -> Remote:
    """By what is waited for partials over spans of so many tokens, while local attention hides `hidden_s` of it."""
    shown = [(size, wait_s + hidden_s) for size, wait_s in waits if wait_s > HIDDEN * hidden_s]
    if len(shown) < 2:  # it hides all of them: remote time is no more than that
        shown = [(size, wait_s + hidden_s) for size, wait_s in waits]
    return Remote(*line_through(shown))


def rate_of(curve: Sequence[Point]) -> float:
    """Seconds for one, at the first point."""
    return curve[0].seconds / curve[0].size
