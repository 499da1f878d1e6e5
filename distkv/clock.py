"""Time as an argument. Actors read a clock; control is handed `now`; tests turn a manual clock by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds on a clock that never goes back; comparable only with readings of the same clock."""

    def now(self) -> float: ...


class MonotonicClock:
    """The process's own monotonic clock."""

    def now(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that stands still until it is advanced."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> float:
        """Move on by `seconds` ≥ 0 and return the new reading."""
        if seconds < 0:
            raise ValueError(f"a clock does not go back: {seconds}")
        self._now += seconds
        return self._now
