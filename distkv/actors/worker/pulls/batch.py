"""Blocks of several pulls in one read: whoever waits gets a share, and neighbours are read together."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import xxhash

from distkv.actors.worker.pulls.pull_job import PullJob
from distkv.wire.links import BlockRead, CheckedRead, CheckingLink, ChecksummingPool, Pool, TensorLink


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

    def __init__(
        self, shares: list[Share], link: TensorLink, pool: Pool, device: ChecksummingPool | None = None
    ) -> None:
        """Start it. device: the pool again, where it computes checksums itself. Raises as `read_blocks` does."""
        self.link = link
        blocks = [(one.job, index) for one in shares for index in range(one.first, one.first + one.count)]
        # Neighbours meet whosever they are. Only a run that is one at both ends is read at once (004 §4.2).
        blocks.sort(key=lambda block: (block[0].pull.source_slots[block[1]], block[0].pull.slots[block[1]]))
        self._blocks, self._pool, self._device = blocks, pool, device
        with ExitStack() as writing:
            self._views = writing.enter_context(pool.writing([job.pull.slots[index] for job, index in blocks]))
            slots = [job.pull.source_slots[index] for job, index in blocks]
            self._read = _begin(link, slots, self._views, checks=device is None)
            self._writing = writing.pop_all()
        self.jobs = list({id(one.job): one.job for one in shares}.values())
        for job in self.jobs:
            job.reads += 1

    def finish(self, timeout_s: float) -> None:
        """Wait for the blocks, compare their checksums, and put them into the pool. Raises as `BlockRead.wait` does."""
        for job in self.jobs:
            job.reads -= 1
        found: Sequence[int] = ()
        with self._writing:
            self._read.wait(timeout_s)
            if isinstance(self._read, CheckedRead):
                found = self._read.checksums
            elif self._device is None:
                found = list(checksums(self._views, self._pool.slot_bytes))
        if self._device is not None:
            # Of what arrived where it is used: staging and the way into the pool are checked, too.
            found = self._device.checksums([job.pull.slots[index] for job, index in self._blocks])
        expected = [job.pull.checksums[index] for job, index in self._blocks]
        if list(found) == expected:
            return
        for (job, _index), checksum, right in zip(self._blocks, found, expected, strict=True):
            job.wrong += checksum != right


def _begin(link: TensorLink, slots: list[int], into: Sequence[memoryview], *, checks: bool) -> BlockRead:
    """Start a read. checks: with checksums on the way, where the link can do that."""
    checked = link.read_checked(slots, into) if checks and isinstance(link, CheckingLink) else None
    return link.read_blocks(slots, into) if checked is None else checked


def checksums(views: Iterable[memoryview], slot_bytes: int) -> Iterator[int]:
    """xxh3 of each slot in views of whole slots."""
    for view in views:
        for start in range(0, view.nbytes, slot_bytes):
            yield xxhash.xxh3_64_intdigest(view[start : start + slot_bytes])
