"""When a process that died is started again. Pure: the time is an argument."""

from __future__ import annotations

from collections import deque

WINDOW_S = 600.0
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0


class Restarts:
    """Counts those of one cluster, by name: at most `limit` of each process within WINDOW_S, after pauses that double
    with each that counts."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._granted: dict[str, deque[float]] = {}

    def count(self, name: str, now_s: float) -> int:
        """How many of a process count at this time."""
        granted = self._granted.get(name, deque())
        while granted and granted[0] <= now_s - WINDOW_S:
            granted.popleft()
        return len(granted)

    def grant(self, name: str, now_s: float) -> float | None:
        """Count one more of a process that died now: the seconds until it is due. None beyond the limit."""
        count = self.count(name, now_s)
        if count >= self.limit:
            return None
        self._granted.setdefault(name, deque()).append(now_s)
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(count, 10))
