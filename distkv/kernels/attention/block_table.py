"""Where the keys of a sequence lie: slots of the pool in order of position."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray


class BlockTable:
    """B rBlocks of one sequence in ascending order of position; they need not follow each other without gaps.

    slots: int64 [B], the pool's slot of each block. positions: int64 [B], position in the sequence of its first key.
    num_keys: keys at positions ≥ num_keys do not exist, whatever lies in their slots.
    block_tokens: P.

    "Index" below means the place of a key in this order: key j of block i has index i·P + j. A table is not changed
    once it is made.
    """

    __slots__ = ("block_tokens", "num_keys", "positions", "slots")

    def __init__(
        self,
        slots: Sequence[int] | NDArray[np.int64],
        positions: Sequence[int] | NDArray[np.int64],
        num_keys: int,
        block_tokens: int,
    ) -> None:
        self.slots: NDArray[np.int64] = np.ascontiguousarray(slots, dtype=np.int64)
        self.positions: NDArray[np.int64] = np.ascontiguousarray(positions, dtype=np.int64)
        self.num_keys, self.block_tokens = num_keys, block_tokens

    @classmethod
    def from_runs(cls, runs: Iterable[tuple[int, int, int]], num_keys: int, block_tokens: int) -> BlockTable:
        """From runs (first_block, first_slot, num_blocks), ascending; blocks that start at num_keys or later are left
        out."""
        end = -(-num_keys // block_tokens)
        kept = [(block, slot, min(count, end - block)) for block, slot, count in runs if count > 0 and block < end]
        if len(kept) == 1:
            ((block, slot, count),) = kept
            slots, numbers = np.arange(slot, slot + count), np.arange(block, block + count)
        else:
            first_blocks, first_slots, counts = np.array(kept, dtype=np.int64).reshape(-1, 3).T
            # Position of each block less that of its run among all.
            place = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
            slots, numbers = np.repeat(first_slots, counts) + place, np.repeat(first_blocks, counts) + place
        return cls(slots, numbers * block_tokens, num_keys, block_tokens)

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def ends(self) -> tuple[int, int]:
        """Positions of the first key of its first and of its last block; (0, 0) without blocks."""
        return (int(self.positions[0]), int(self.positions[-1])) if len(self.positions) else (0, 0)

    @property
    def num_existing(self) -> int:
        """How many of its keys exist."""
        last = self.ends[1]
        if not len(self.slots) or last >= self.num_keys:
            return self.keys_before(self.num_keys)
        return (len(self.slots) - 1) * self.block_tokens + min(self.block_tokens, self.num_keys - last)

    def with_keys(self, num_keys: int) -> BlockTable:
        """The same blocks, of which so many keys exist: one of them in each block, at least."""
        other = BlockTable.__new__(BlockTable)
        other.slots, other.positions, other.block_tokens = self.slots, self.positions, self.block_tokens
        other.num_keys = num_keys
        return other

    def keys_before(self, position: int) -> int:
        """How many existing keys have a position below `position`: they are those with the lowest indices."""
        position = min(position, self.num_keys)
        blocks = bisect_left(self.positions, position)
        if blocks == 0:
            return 0
        return (blocks - 1) * self.block_tokens + min(self.block_tokens, position - int(self.positions[blocks - 1]))

    def key_positions(self, first: int, end: int) -> NDArray[np.int64]:
        """int64 [end − first]: the positions of the keys at indices [first, end)."""
        index = np.arange(first, end)
        return self.positions[index // self.block_tokens] + index % self.block_tokens

    def within(self, start: int, end: int) -> BlockTable:
        """Only the blocks that hold keys at positions in [start, end)."""
        first = bisect_left(self.positions, start - self.block_tokens + 1)
        last = bisect_left(self.positions, min(end, self.num_keys)) if start < end else first
        return self._cut(first, max(first, last))

    def tiles(self, tile_blocks: int) -> Iterator[BlockTable]:
        """Cut into pieces of at most `tile_blocks` blocks."""
        for first in range(0, len(self.slots), tile_blocks):
            yield self._cut(first, first + tile_blocks)

    def _cut(self, first: int, last: int) -> BlockTable:
        if first == 0 and last >= len(self.slots):
            return self
        return BlockTable(self.slots[first:last], self.positions[first:last], self.num_keys, self.block_tokens)
