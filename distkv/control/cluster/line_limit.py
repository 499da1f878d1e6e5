"""A bound on log lines that strangers can cause."""

from __future__ import annotations

BURST_LINES = 20
LINES_PER_S = 1.0


class LineLimit:
    """Lets a burst of lines pass, then one a second; says how many were left out before each that passes."""

    def __init__(self) -> None:
        self._credit = float(BURST_LINES)
        self._last = 0.0
        self._left_out = 0

    def admit(self, now: float) -> int | None:
        """How many lines were left out since the last one; None if this one is left out too."""
        self._credit = min(BURST_LINES, self._credit + (now - self._last) * LINES_PER_S)
        self._last = now
        if self._credit < 1:
            self._left_out += 1
            return None
        self._credit -= 1
        left_out, self._left_out = self._left_out, 0
        return left_out
