"""How much longer an output is expected to get, by the outputs that have ended here, and what memory that takes."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from itertools import accumulate

SEEN = 64
"""Outputs that are remembered, the newest ones."""
UNSEEN_TOKENS = 128
"""What an output is expected to grow by while nothing longer was seen."""


class OutputLengths:
    """Lengths of the newest outputs, in tokens. A question costs O(log SEEN)."""

    def __init__(self) -> None:
        self._newest: deque[int] = deque()
        self._sorted: list[int] = []
        self._sums = [0]
        self.changes = 0

    def ended(self, num_tokens: int) -> None:
        """An output ended by itself, or at its limit, after so many tokens."""
        self._newest.append(num_tokens)
        insort(self._sorted, num_tokens)
        if len(self._newest) > SEEN:
            self._sorted.remove(self._newest.popleft())
        self._sums = [0, *accumulate(self._sorted)]
        self.changes += 1

    def still_to_come(self, generated: int, max_tokens: int) -> int:
        """Tokens that an output of so many is expected to get yet: it ends as those did that got longer, on average,
        and never above `max_tokens`."""
        first = bisect_right(self._sorted, generated)
        longer = len(self._sorted) - first
        expected = generated + UNSEEN_TOKENS
        if longer:
            expected = -(-(self._sums[-1] - self._sums[first]) // longer)
        return max(0, min(expected, max_tokens) - generated)


def blocks_to_come(num_tokens: int, held_blocks: int, still_to_come: int, block_tokens: int) -> int:
    """rBlocks that a sequence of `num_tokens`, which has `held_blocks` now, will need besides; the KV of its last token
    is never needed."""
    return max(0, -(-(num_tokens + still_to_come - 1) // block_tokens) - held_blocks)


def most_at_once(num_blocks: int, num_sequences: int) -> int:
    """rBlocks that so many sequences need besides at once at most, if they are expected to need `num_blocks` in all
    until their ends, one at least for each.

    What one has grown by is there for the others once it has ended. If n sequences grow alike and end one after the
    other at equal distances, they need (n + 1)² / 4n at once of what the last one grows by, of (n + 1) / 2 in all.
    """
    return max(num_sequences, -(-num_blocks * (num_sequences + 1) // max(1, 2 * num_sequences)))
