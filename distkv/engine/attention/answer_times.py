"""How long a step waits for a creditor's partials: many times the slowest it lately gave."""

from __future__ import annotations

SHORTEST_S = 0.5
"""A process that is busy, or whose machine is, may stand still for so long."""
MANY_TIMES = 10
_FADES = 0.99


class AnswerTimes:
    """Of one creditor, by the work asked for: query rows times rBlocks. Used by one thread; costs a few entries, one
    for each power of two."""

    def __init__(self, longest_s: float, shortest_s: float = SHORTEST_S) -> None:
        """longest_s: what is waited at most, and while it has not answered yet. shortest_s: what is at least."""
        self.longest_s, self._shortest_s = longest_s, shortest_s
        self._slowest_s: dict[int, float] = {}

    def took(self, work: int, seconds: float) -> None:
        """An answer came. The slowest one counts, less with each that follows."""
        size = work.bit_length()
        self._slowest_s[size] = max(seconds, _FADES * self._slowest_s.get(size, 0.0))

    def patience_s(self, work: int) -> float:
        """How long to wait for an answer."""
        if not self._slowest_s:
            return self.longest_s
        return self.patience_for(self._usual_s(work.bit_length()))

    def patience_for(self, usual_s: float) -> float:
        """How long to wait for what usually takes so long."""
        return min(self.longest_s, max(self._shortest_s, MANY_TIMES * usual_s))

    def _usual_s(self, size: int) -> float:
        """Of what was never asked for: as the next smaller takes, in proportion; or as the next larger."""
        smaller = max((known for known in self._slowest_s if known <= size), default=None)
        if smaller is None:
            return self._slowest_s[min(self._slowest_s)]
        return float(self._slowest_s[smaller] * 2 ** (size - smaller))
