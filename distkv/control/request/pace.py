"""How fast requests of an instance end, so that who finds its queue full learns when to try again."""

from __future__ import annotations

WEIGHT = 0.1
SHARE = 0.1
SHORTEST_S, LONGEST_S = 1.0, 60.0


class Pace:
    """The mean time between two ends, of those of late."""

    def __init__(self) -> None:
        self._last_at: float | None = None
        self._between_s: float | None = None

    def ended(self, now: float) -> None:
        """A request has ended."""
        if self._last_at is not None:
            between_s = now - self._last_at
            mean_s = between_s if self._between_s is None else self._between_s
            self._between_s = mean_s + WEIGHT * (between_s - mean_s)
        self._last_at = now

    def wait_s(self, num_waiting: int) -> float:
        """Until a tenth of those that wait will have gone on, so that who is sent away finds a place, though others
        come too; within bounds, and the longest while nothing is known."""
        if self._between_s is None:
            return LONGEST_S
        return min(LONGEST_S, max(SHORTEST_S, SHARE * num_waiting * self._between_s))
