"""A bound on log lines that others can cause."""

from __future__ import annotations

BURST_LINES = 20
LINES_PER_S = 1.0


class LineLimit:
    """Lets a burst of lines pass, then `per_s` of them; says how many were left out before each that passes."""

    def __init__(self, burst: int = BURST_LINES, per_s: float = LINES_PER_S) -> None:
        self._burst, self._per_s = burst, per_s
        self._credit = float(burst)
        self._last = 0.0
        self._left_out = 0

    def admit(self, now: float) -> int | None:
        """How many lines were left out since the last one; None if this one is left out too."""
        self._credit = min(self._burst, self._credit + (now - self._last) * self._per_s)
        self._last = now
        if self._credit < 1:
            self._left_out += 1
            return None
        self._credit -= 1
        left_out, self._left_out = self._left_out, 0
        return left_out
