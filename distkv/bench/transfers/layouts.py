"""Where blocks lie that are read, and where they go."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from distkv.checksums import pack
from distkv.wire.links import PoolMemory
from distkv.wire.links.memory.runs import Destination

Kind = Literal["scattered", "in runs of 16", "contiguous"]
KINDS: tuple[Kind, ...] = ("scattered", "in runs of 16", "contiguous")
RUN_LENGTHS: dict[Kind, int | None] = {"scattered": 1, "in runs of 16": 16, "contiguous": None}
ABSENT = 255


def fill(pool: PoolMemory) -> None:
    """Every block with a byte of its own, as far as there are any."""
    np.frombuffer(pool.view, dtype=np.uint8).reshape(pool.num_slots, -1)[:] = _marks(pool.num_slots)[:, None]


def _marks(num_slots: int) -> NDArray[np.uint8]:
    return (np.arange(num_slots) % 251).astype(np.uint8)


@dataclass(frozen=True, slots=True)
class Layout:
    """source, target: slots of two pools of twice as many; block by block. checksums: of the blocks, as a
    message carries them, if these are known."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    checksums: bytes = b""

    @classmethod
    def of(cls, kind: Kind, num_blocks: int, seed: int = 0) -> Layout:
        """Runs of this length, no two of them neighbours, in random order at both ends."""
        run = RUN_LENGTHS[kind] or num_blocks
        draw = random.Random(seed)

        def slots() -> tuple[int, ...]:
            starts = [2 * run * number for number in range(num_blocks // run)]
            draw.shuffle(starts)
            return tuple(start + offset for start in starts for offset in range(run))

        return cls(slots(), slots())

    def told(self, checksums: Sequence[int]) -> Callable[[], Layout]:
        """Makes it anew, as a worker has it when it begins to read: just decoded. checksums: of every slot of the
        pool that is read from."""
        encoded = msgspec.msgpack.encode((self.source, self.target, pack(checksums[slot] for slot in self.source)))
        decoder = msgspec.msgpack.Decoder(tuple[tuple[int, ...], tuple[int, ...], bytes])
        return lambda: Layout(*decoder.decode(encoded))

    def clear(self, pool: PoolMemory) -> None:
        """No block is there afterwards."""
        np.frombuffer(pool.view, dtype=np.uint8)[:] = ABSENT

    def is_here(self, pool: PoolMemory) -> bool:
        """Whether every block of a pool that was filled is where it should be."""
        blocks = np.frombuffer(pool.view, dtype=np.uint8).reshape(pool.num_slots, pool.slot_bytes)
        marks = _marks(pool.num_slots)[np.array(self.source)]
        return bool((blocks[np.array(self.target)] == marks[:, None]).all())

    def views(self, pool: PoolMemory) -> Destination:
        """The target, as workers give it to reads."""
        with pool.writing(self.target) as views:
            return views

    def blocks(self, pool: PoolMemory) -> list[memoryview]:
        """The target, a view for each block."""
        size = pool.slot_bytes
        return [pool.view[slot * size : (slot + 1) * size] for slot in self.target]
