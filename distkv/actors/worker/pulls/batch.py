"""Blocks of several pulls in one read: whoever waits gets a share, and neighbours are read together."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import TypeGuard, cast

import xxhash

from distkv.actors.worker.pulls.pull_job import PullJob
from distkv.wire.links import (
    BlockRead,
    CheckedRead,
    CheckingLink,
    ChecksummingPool,
    PlacingLink,
    Pool,
    PoolMemory,
    TensorLink,
)
from distkv.wire.links.memory.mapped_copy import checksums_of
from distkv.wire.links.memory.pool_memory import slots_problem


@dataclass(frozen=True, slots=True)
class Share:
    """Blocks [first, first + count) of a pull."""

    job: PullJob
    first: int
    count: int


def take_shares(jobs: deque[PullJob], most_blocks: int) -> list[Share]:
    """What to read next of pulls by one link, `most_blocks` at most: the same of each as long as it has that much, in
    turn, so that a small pull waits for no large one. Who has no blocks left leaves `jobs`."""
    shares: list[Share] = []
    room = most_blocks
    while jobs and room:
        each = max(1, room // len(jobs))
        for _ in range(min(len(jobs), room)):
            job = jobs.popleft()
            if count := min(job.left, each, room):
                shares.append(Share(job, job.taken, count))
                job.taken += count
                room -= count
            if job.left:
                jobs.append(job)
    return shares


class Batch:
    """One read under way into the own pool, and whose blocks it brings: each of these jobs has one read more."""

    def __init__(self, shares: list[Share], link: TensorLink, pool: Pool) -> None:
        """Start it. Raises as `read_blocks` does."""
        self.link = link
        blocks = [(one.job, index) for one in shares for index in range(one.first, one.first + one.count)]
        # Neighbours meet whosever they are. Only a run that is one at both ends is read at once (004 §4.2).
        blocks.sort(key=lambda block: (block[0].pull.source_slots[block[1]], block[0].pull.slots[block[1]]))
        self._blocks, self._pool = blocks, pool
        self._slots = [job.pull.slots[index] for job, index in blocks]
        # Where the device checks, it checks what arrived where it is used: the way into the pool is checked, too.
        self._by_device = has_device_checksums(pool)
        source_slots = [job.pull.source_slots[index] for job, index in blocks]
        self._views: Sequence[memoryview] = ()
        placed = link.read_into_pool(source_slots, self._slots) if _places(link) else None
        self._checked: CheckedRead | None = None
        with ExitStack() as writing:
            if placed is None:
                self._views = writing.enter_context(pool.writing(self._slots))
                if not self._by_device and checks(link):
                    self._checked = link.read_checked(source_slots, self._views)
            self._read: BlockRead = placed or self._checked or link.read_blocks(source_slots, self._views)
            self._writing = writing.pop_all()
        self.jobs = list({id(one.job): one.job for one in shares}.values())
        for job in self.jobs:
            job.reads += 1

    def finish(self, timeout_s: float) -> None:
        """Wait for the blocks, compare their checksums, and put them into the pool. Raises as `BlockRead.wait` does."""
        for job in self.jobs:
            job.reads -= 1
        found = array("Q")
        with self._writing:
            self._read.wait(timeout_s)
            if self._checked is not None:
                found = self._checked.checksums
            elif self._views and not (self._by_device or isinstance(self._pool, PoolMemory)):
                found = checksums(self._views, self._pool.slot_bytes)
        found = found or checksums_of_slots(self._pool, self._slots)
        expected = array("Q", [job.checksums[index] for job, index in self._blocks])
        if found == expected:
            return
        for (job, _index), checksum, right in zip(self._blocks, found, expected, strict=True):
            job.wrong += checksum != right


def checks(link: TensorLink) -> TypeGuard[CheckingLink]:
    """Whether it may read with checksums on the way."""
    return _is(type(link), CheckingLink)


def _places(link: TensorLink) -> TypeGuard[PlacingLink]:
    return _is(type(link), PlacingLink)


@cache
def _is(kind: type, protocol: type) -> bool:
    # To ask a protocol takes as long as to copy an rBlock.
    return issubclass(kind, protocol)


def checksums(views: Sequence[memoryview], slot_bytes: int) -> array[int]:
    """xxh3 (uint64) of each slot in views of whole slots."""
    starts = ((view, start) for view in views for start in range(0, view.nbytes, slot_bytes))
    return array("Q", (xxhash.xxh3_64_intdigest(view[start : start + slot_bytes]) for view, start in starts))


def checksums_of_slots(pool: Pool, slots: Sequence[int]) -> array[int]:
    """xxh3 (uint64) of these slots as they lie in the pool: by its device where that computes them, else by the
    host."""
    if has_device_checksums(pool):
        return array("Q", pool.checksums(slots))
    if isinstance(pool, PoolMemory) and (here := checksums_in(pool, slots)) is not None:
        return here
    found = array("Q")
    for first in range(0, len(slots), pool.batch_slots):
        with pool.reading(slots[first : first + pool.batch_slots]) as views:
            found += checksums(views, pool.slot_bytes)
    return found


def checksums_in(pool: PoolMemory, slots: Sequence[int]) -> array[int] | None:
    """Likewise, by one native call; None where there is none."""
    if problem := slots_problem(slots, pool.num_slots):
        raise ValueError(problem)
    return checksums_of(pool.memory, slots, pool.slot_bytes)


def has_device_checksums(pool: Pool) -> TypeGuard[ChecksummingPool]:
    """Whether its device computes them."""
    return _may_compute(type(pool)) and cast(ChecksummingPool, pool).has_checksums


@cache
def _may_compute(kind: type) -> bool:
    return hasattr(kind, "has_checksums")
