"""A measured table as a function."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from distkv.wire.messages.profile import Point


class CurveFunction:
    """Seconds over size: linear between points, never falling where they do not, nor beyond them. O(log points).

    Work takes no time when there is none, and beyond the last point time in proportion to it. What is not work alone (a
    step reads the weights for one sequence as for ten) stays below the first point as it is there, and goes on beyond
    the last as between the last two; with one point, in proportion.
    """

    __slots__ = ("_seconds", "_sizes", "_slope")

    def __init__(self, points: Sequence[Point], *, of_work: bool) -> None:
        """points: at least one, ascending."""
        first, last = points[0], points[-1]
        self._sizes = [0.0, *(float(point.size) for point in points)]
        self._seconds = [0.0 if of_work else first.seconds, *(point.seconds for point in points)]
        if of_work or len(points) == 1:
            self._slope = last.seconds / last.size
        else:
            self._slope = max(0.0, last.seconds - points[-2].seconds) / (last.size - points[-2].size)

    def __call__(self, size: float) -> float:
        """Seconds for `size`, which is at least 0."""
        sizes, seconds = self._sizes, self._seconds
        if size >= sizes[-1]:
            return seconds[-1] + (size - sizes[-1]) * self._slope
        after = max(1, bisect_left(sizes, size))
        share = (size - sizes[after - 1]) / (sizes[after] - sizes[after - 1])
        return seconds[after - 1] + share * (seconds[after] - seconds[after - 1])
