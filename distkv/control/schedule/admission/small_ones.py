"""What is left free for small requests by those that could wait for memory at home (docs/design.md, "Admission").

Whoever borrows where it could wait takes memory in which small ones would begin at once. They need as much as they had
of late: not a share of the pool, which is too much where few come.
"""

from __future__ import annotations

import math

from distkv.control.schedule.sequences import Sequences

OF_POOL = 0.1
"""Small is what takes as much of its pool at most. No more than that is kept for all of them."""
WINDOW_S = 10.0
"""What was longer ago counts for less than a third."""
TIMES = 4.0
"""Of what they hold on average: they come together, too."""


class SmallOnes:
    """Of one instance. most: rBlocks that are kept, and that a small one has."""

    def __init__(self, sequences: Sequences, num_blocks: int) -> None:
        self._sequences = sequences
        self.most = int(OF_POOL * num_blocks)
        self._changes = 0
        self._held = 0
        self._mean = self._mean_at = 0.0

    def look(self, now: float) -> None:
        """Others may run than before."""
        if self._sequences.batch_changes == self._changes:
            return
        self._changes = self._sequences.batch_changes
        self._mean, self._mean_at = self._mean_of(now), now
        sizes = (seq.size_blocks for seq in self._sequences.running)
        self._held = sum(size for size in sizes if size <= self.most)

    def blocks(self, now: float) -> int:
        """rBlocks to keep for them."""
        return min(self.most, math.ceil(TIMES * self._mean_of(now)))

    def _mean_of(self, now: float) -> float:
        return self._held + (self._mean - self._held) * math.exp((self._mean_at - now) / WINDOW_S)
