"""The largest that a number has been of late."""

from __future__ import annotations

from collections import deque

LATELY_S = 300.0
"""For so long a cluster is expected to have again the memory that it had: as long as a gManager remembers the dead."""


class RecentPeak:
    """Of a number that is looked at again and again. A look costs O(1) on average; what is kept are values that fell
    one below the other within the window."""

    def __init__(self, window_s: float = LATELY_S) -> None:
        self._window_s = window_s
        self._value = 0
        self._before: deque[tuple[int, float]] = deque()  # falling values, and when each was true last

    def look(self, value: int, now: float) -> int:
        """It is `value` now; returns the largest that it was within the window."""
        if value != self._value:
            while self._before and self._before[-1][0] <= self._value:
                self._before.pop()
            self._before.append((self._value, now))
            self._value = value
        while self._before and now - self._before[0][1] >= self._window_s:
            self._before.popleft()
        return max(value, self._before[0][0]) if self._before else value
