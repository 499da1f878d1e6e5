"""Where the keys of one call lie: slots of the pool in order of position."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class BlockTable:
    """B rBlocks of one sequence in ascending order of position; they need not follow each other without gaps.

    slots[i]: the pool's slot of block i. positions[i]: position in the sequence of its first key.
    num_keys: keys at positions ≥ num_keys do not exist, whatever lies in their slots.
    block_tokens: P.

    "Index" below means the place of a key in this order: key j of block i has index i·P + j.
    """

    slots: tuple[int, ...]
    positions: tuple[int, ...]
    num_keys: int
    block_tokens: int

    @classmethod
    def from_runs(cls, runs: Iterable[tuple[int, int, int]], num_keys: int, block_tokens: int) -> BlockTable:
        """From runs (first_block, first_slot, num_blocks), ascending; blocks that start at num_keys or later are left
        out."""
        slots: list[int] = []
        positions: list[int] = []
        slot_runs: list[tuple[int, int]] = []
        for first_block, first_slot, num_blocks in runs:
            needed = -(-num_keys // block_tokens) - first_block
            count = min(num_blocks, max(needed, 0))
            slot_runs.append((first_slot, count))
            slots.extend(range(first_slot, first_slot + count))
            positions.extend(range(first_block * block_tokens, (first_block + count) * block_tokens, block_tokens))
        blocks = cls(tuple(slots), tuple(positions), num_keys, block_tokens)
        blocks.__dict__["_slot_runs"] = slot_runs
        return blocks

    def __len__(self) -> int:
        return len(self.slots)

    def keys_before(self, position: int) -> int:
        """How many existing keys have a position below `position`: they are those with the lowest indices."""
        position = min(position, self.num_keys)
        blocks = bisect_left(self.positions, position)
        if blocks == 0:
            return 0
        return (blocks - 1) * self.block_tokens + min(self.block_tokens, position - self.positions[blocks - 1])

    def within(self, start: int, end: int) -> BlockTable:
        """Only the blocks that hold keys at positions in [start, end)."""
        first = bisect_left(self.positions, start - self.block_tokens + 1)
        last = bisect_left(self.positions, min(end, self.num_keys))
        return self._cut(first, max(first, last))

    def tiles(self, tile_blocks: int) -> tuple[BlockTable, ...]:
        """Cut into pieces of at most `tile_blocks` blocks."""
        if len(self.slots) <= tile_blocks:
            return (self,)
        cache: dict[int, tuple[BlockTable, ...]] = self.__dict__.setdefault("_tiles", {})
        if tile_blocks not in cache:
            starts = range(0, len(self.slots), tile_blocks)
            cache[tile_blocks] = tuple(self._cut(start, start + tile_blocks) for start in starts)
        return cache[tile_blocks]

    def _cut(self, first: int, last: int) -> BlockTable:
        if first == 0 and last >= len(self.slots):
            return self
        return BlockTable(self.slots[first:last], self.positions[first:last], self.num_keys, self.block_tokens)

    @cached_property
    def first_slot(self) -> int | None:
        """The first slot if all slots follow each other, else None."""
        first = self.slots[0] if self.slots else 0
        return first if self.slots == tuple(range(first, first + len(self.slots))) else None

    @cached_property
    def slot_index(self) -> Tensor:
        """int64 [B]."""
        return torch.from_numpy(np.array(self.slots, dtype=np.int64))

    @cached_property
    def slot_array(self) -> NDArray[np.int32]:
        """int32 [B], made of runs where they are known: the steps of a GPU have tens of thousands of blocks."""
        runs: list[tuple[int, int]] = self.__dict__.get("_slot_runs", [])
        if not runs:
            return np.array(self.slots, dtype=np.int32)
        first, count = np.array(runs, dtype=np.int32).T
        slots: NDArray[np.int32] = np.repeat(first - (np.cumsum(count, dtype=np.int32) - count), count)
        slots += np.arange(len(slots), dtype=np.int32)
        return slots

    @cached_property
    def starts(self) -> Tensor:
        """int64 [B]: the position of each block's first key."""
        return torch.from_numpy(np.array(self.positions, dtype=np.int64))

    @cached_property
    def key_positions(self) -> Tensor:
        """int64 [B·P]: the position of the key at each index."""
        return (self.starts[:, None] + torch.arange(self.block_tokens)).view(-1)
