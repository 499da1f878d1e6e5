"""The queue of one source: pulls of many requests under way at once, each verified while the next is being read.

A step waits for the oldest read. As the next ones are asked for already, their bytes arrive while its blocks are being
verified; what is read ahead is bounded.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from itertools import chain

import structlog

from distkv.actors.worker.links.peer_links import PeerLinks
from distkv.actors.worker.pulls.batch import Batch, Share, take_shares
from distkv.actors.worker.pulls.pull_job import Ends, PullJob
from distkv.engine.attention.spans import SpanRegistry
from distkv.errors import DistKVError, LinkError, MalformedMessage, WireError
from distkv.log.lines import about
from distkv.wire.links import Pool, TensorLink

BATCH_BYTES = 4 * 2**20
READS_AHEAD = 2
"""Reads under way at once, of `BATCH_BYTES` at most, or of one block if that is larger."""

Count = Callable[[int, int], None]
"""Takes the bytes of a pull that was read, and how many of its blocks were refused."""


class PullQueue:
    """Used by the thread of one source."""

    def __init__(
        self,
        peers: PeerLinks,
        registry: SpanRegistry,
        pool: Pool,
        read_timeout_s: float,
        ends: Ends,
        count: Count,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """on_failure: takes what is no fault of the source."""
        self._peers, self._registry, self._pool, self._ends, self._count = peers, registry, pool, ends, count
        self._read_timeout_s, self._on_failure = read_timeout_s, on_failure
        self._batch_blocks = max(1, min(pool.batch_slots, BATCH_BYTES // pool.slot_bytes))
        self._waiting: deque[PullJob] = deque()
        # By their links; more than one only when its source has come back under another.
        self._begun: dict[TensorLink, deque[PullJob]] = {}
        self._batches: deque[Batch] = deque()

    def put(self, job: PullJob) -> None:
        """See Work."""
        self._waiting.append(job)

    def step(self) -> bool:
        """Ask for what may be read ahead, and finish the oldest read."""
        try:
            while self._waiting:
                self._begin(self._waiting.popleft())
            while self._begun and len(self._batches) < READS_AHEAD:
                self._start()
            if self._batches:
                self._finish(self._batches.popleft())
        except BaseException as error:
            self._on_failure(error)
            return False
        return bool(self._waiting or self._begun or self._batches)

    def _begin(self, job: PullJob) -> None:
        pull = job.pull
        if pull.span is not None and job.pins.enter_context(self._registry.pin(pull.span)) is None:
            job.fail("the span is gone")
        else:
            job.link = self._peers.open_source(pull.source_id, pull.source_incarnation) or self._connect(job)
        if job.link is not None and job.left:
            self._begun.setdefault(job.link, deque()).append(job)
        else:
            self._end(job)

    def _connect(self, job: PullJob) -> TensorLink | None:
        try:
            with about(cause=job.cause):
                return self._peers.source(job.pull.source_id, job.pull.source_incarnation)
        except (LinkError, WireError) as error:
            job.fail(error)
            return None

    def _start(self) -> None:
        """One more read."""
        link, jobs = next(iter(self._begun.items()))
        shares: dict[PullJob, list[Share]] = {}
        for one in take_shares(jobs, self._batch_blocks):
            shares.setdefault(one.job, []).append(one)
        if not jobs:
            del self._begun[link]
        # Each is looked at once: what has ended may be somebody else's memory, and nothing more is read into it.
        wanted = {job: of_job for job, of_job in shares.items() if self._is_wanted(job)}
        try:
            if wanted:
                self._read(wanted, link)
        except (LinkError, WireError) as error:
            self._fail(link, error, list(wanted))

    def _is_wanted(self, job: PullJob) -> bool:
        """A slow source keeps no revocation waiting for more than the reads under way."""
        if job.pull.span is None or not self._registry.is_gone(job.pull.span):
            return True
        job.fail("the span is gone")
        if not job.reads and not job.is_over:
            self._end(job)
        return False

    def _read(self, shares: Mapping[PullJob, list[Share]], link: TensorLink) -> None:
        try:
            self._batches.append(Batch(list(chain.from_iterable(shares.values())), link, self._pool))
        except MalformedMessage as error:
            if len(shares) > 1:
                # One of them asks for what cannot be read: only that pull fails.
                for job, of_job in shares.items():
                    self._read({job: of_job}, link)
                return
            (job,) = shares
            job.fail(error)
            if not job.reads:
                self._end(job)

    def _finish(self, batch: Batch) -> None:
        try:
            batch.finish(self._read_timeout_s)
        except (LinkError, WireError) as error:
            self._fail(batch.link, error, batch.jobs)
            return
        for job in batch.jobs:
            if not job.left and not job.reads:
                self._end(job)

    def _end(self, job: PullJob) -> None:
        if not job.problem:
            self._count(job.num_blocks * self._pool.slot_bytes, job.wrong)
        if job.wrong:
            # No error by itself: who reads on after a lease ran out may find what was put there since.
            with about(cause=job.cause):
                structlog.get_logger().warning("checksums do not match", source=job.pull.source_id, blocks=job.wrong)
            job.fail(f"{job.wrong} of {job.num_blocks} checksums do not match")
        job.end(self._ends)

    def _fail(self, link: TensorLink, error: DistKVError, jobs: list[PullJob]) -> None:
        """The link is dead: these pulls have failed, and all others that were begun by it."""
        self._peers.drop_source(jobs[0].pull.source_id, link)
        jobs = [*jobs, *self._begun.pop(link, ())]
        for batch in [batch for batch in self._batches if batch.link is link]:
            # It raises at once, and only then is nothing written any more into what its pulls give back.
            with contextlib.suppress(LinkError, WireError):
                batch.finish(self._read_timeout_s)
            jobs += batch.jobs
        self._batches = deque(batch for batch in self._batches if batch.link is not link)
        for job in {id(job): job for job in jobs}.values():
            if not job.is_over:
                job.fail(error)
                self._end(job)
