"""Which bytes a read copies from where to where: runs that are contiguous at both ends (004 §4.2)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from distkv.wire.links.memory.pool_memory import Part, PoolShape, part_problem, slots_problem
from distkv.wire.links.memory.slot_numbers import places_at
from distkv.wire.links.memory.slot_views import SlotViews

Destination = Sequence[memoryview]
"""Where a read puts its blocks: writable views of one or more whole rBlocks, or parts of them, each."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Copies that together are one read, in the order of its slots; three int64 arrays of equal length.

    remote: first byte of each in the peer's pool. local: address of its first byte here. sizes: its bytes. memory: the
    destination, which is neither freed nor unmapped for as long as these runs exist.
    """

    remote: NDArray[np.int64]
    local: NDArray[np.int64]
    sizes: NDArray[np.int64]
    memory: Sequence[NDArray[np.uint8]]

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def num_bytes(self) -> int:
        return int(self.sizes.sum())

    def pieces(self, most_bytes: int) -> Iterator[Runs]:
        """The same copies in pieces of at most so many bytes; a longer run is cut."""
        ends = np.cumsum(self.sizes)
        first, cut = 0, 0
        while first < len(self):
            begin = int(ends[first] - self.sizes[first]) + cut
            last = int(np.searchsorted(ends, begin + most_bytes))
            left_over = last < len(self) and int(ends[last]) > begin + most_bytes
            chosen = slice(first, last + 1)
            remote, local, sizes = (one[chosen].copy() for one in (self.remote, self.local, self.sizes))
            for starts in (remote, local):
                starts[0] += cut
            sizes[0] -= cut
            if left_over:
                kept = begin + most_bytes - int(ends[last] - self.sizes[last])
                sizes[-1] = kept - (cut if last == first else 0)
                first, cut = last, kept
            else:
                first, cut = last + 1, 0
            yield Runs(remote, local, sizes, self.memory)


def runs_of(slots: Sequence[int], slot_bytes: int, into: Destination, part: Part | None = None) -> Runs:
    """The copies that bring these slots of a pool, or that part of each, into the destination, as few as there can be:
    one for each run of blocks that are neighbours in the pool and at the destination.

    The caller has checked slots and sizes (`read_problem`). Raises ValueError for a destination that cannot be written.
    """
    first_byte, size = part or (0, slot_bytes)
    remote = np.asarray(slots, dtype=np.int64) * slot_bytes + first_byte
    local, memory = _places(into, size)
    return _joined(remote, local, size, memory)


def runs_into_pool(slots: Sequence[int], slot_bytes: int, own_slots: Sequence[int], own_address: int) -> Runs:
    """The same for these slots of the own pool, which begins at an address, of whatever memory; who has it keeps it.

    The caller has checked the slots of both.
    """
    remote, local = (np.asarray(numbers, dtype=np.int64) * slot_bytes for numbers in (slots, own_slots))
    return _joined(remote, local + own_address, slot_bytes, ())


def _joined(
    remote: NDArray[np.int64], local: NDArray[np.int64], size: int, memory: Sequence[NDArray[np.uint8]]
) -> Runs:
    """Blocks of `size` bytes, with those in one copy that are neighbours at both ends."""
    starts = np.ones(len(remote), dtype=bool)
    starts[1:] = (np.diff(remote) != size) | (np.diff(local) != size)
    first = np.flatnonzero(starts)
    blocks = np.diff(first, append=len(remote))
    return Runs(remote[first], local[first], blocks * size, memory)


@dataclass(frozen=True, slots=True)
class Places:
    """Where blocks go, one by one. addresses: int64, of the first byte of each. memory: see Runs."""

    addresses: array[int]
    memory: Sequence[NDArray[np.uint8]]


def places_of(into: Destination, size: int) -> Places:
    """The places of blocks of `size` bytes at the destination, in order. For few blocks this takes less time than
    `runs_of`. Raises as that does."""
    memory = [_writable(view) for view in ([into.memory] if isinstance(into, SlotViews) else into) if view.nbytes]
    bases = [view.__array_interface__["data"][0] for view in memory]
    if isinstance(into, SlotViews):
        return Places(places_at(bases[0], into.numbers, size), memory)
    starts = (range(base, base + view.nbytes, size) for base, view in zip(bases, memory, strict=True))
    return Places(array("q", chain.from_iterable(starts)), memory)


def read_problem(source: PoolShape, slots: Sequence[int], into: Destination, part: Part | None) -> str:
    """What is wrong with a read of these slots of a peer's pool, or "". Raises ValueError when the views do not fit."""
    problem = slots_problem(slots, source.num_slots) or (part_problem(part, source.slot_bytes) if part else "")
    if problem:
        return problem
    one = part[1] if part else source.slot_bytes
    fits = one == into.slot_bytes if isinstance(into, SlotViews) else not any(view.nbytes % one for view in into)
    size = _size(into)
    if size != len(slots) * one or not fits:
        raise ValueError(f"{len(slots)} rBlocks of {one} bytes do not fit views of {size} bytes")
    return ""


def _size(into: Destination) -> int:
    return into.nbytes if isinstance(into, SlotViews) else sum(view.nbytes for view in into)


def _places(into: Destination, size: int) -> tuple[NDArray[np.int64], list[NDArray[np.uint8]]]:
    """The address of each block of `size` bytes of the destination, in order, and the memory they lie in."""
    memory = [_writable(view) for view in ([into.memory] if isinstance(into, SlotViews) else into) if view.nbytes]
    bases = np.array([view.__array_interface__["data"][0] for view in memory], dtype=np.int64)
    if isinstance(into, SlotViews):
        return bases[0] + np.asarray(into.numbers) * size, memory
    counts = np.array([view.nbytes // size for view in memory], dtype=np.int64)
    before = np.cumsum(counts) - counts
    places: NDArray[np.int64] = np.repeat(bases - before * size, counts) + np.arange(counts.sum()) * size
    return places, memory


def _writable(view: memoryview) -> NDArray[np.uint8]:
    array = np.frombuffer(view, dtype=np.uint8)
    if not array.flags.writeable:
        raise ValueError("the destination of a read is memory that cannot be written")
    return array
