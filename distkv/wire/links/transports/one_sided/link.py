"""The tensor link that reads by a library: frames go over a socket, blocks by one-sided reads."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from distkv.errors import LinkClosed, LinkTimeout, MalformedMessage
from distkv.wire.links.base import BlockRead
from distkv.wire.links.memory.pool_memory import Part, PoolRegion, slots_problem
from distkv.wire.links.memory.runs import Destination, Runs, runs_into_pool, runs_of
from distkv.wire.links.streams.frames import FrameSocket
from distkv.wire.links.transports.one_sided.errors import OneSidedError
from distkv.wire.links.transports.stream_link import StreamLink


class Pending(Protocol):
    """What a library does for one read."""

    @property
    def is_complete(self) -> bool: ...


PendingT = TypeVar("PendingT", bound=Pending)


class Reader(Protocol[PendingT]):
    """Reads from one pool. Any thread may call; after OneSidedError it is to be closed."""

    def start(self, runs: Runs) -> PendingT:
        """Begin to read; the destination belongs to the read until it is complete, or the reader is closed.

        Raises OneSidedError.
        """

    def progress(self, pending: PendingT) -> bool:
        """Move it on, and others maybe; whether anything moved. Raises OneSidedError for one that failed."""

    def rest(self, socket: int, waited_s: float, at_most_s: float) -> None:
        """Sleep, where nothing moved, until something may: `at_most_s` at the longest, or until the connection of this
        descriptor ends. waited_s: how long the read has been waited for. Raises OneSidedError."""

    def close(self) -> None:
        """More than once is fine. When it returns no read writes any more, complete or not."""


class OneSidedLink(StreamLink, Generic[PendingT]):
    """A TensorLink that reads without the peer's Python; by RDMA and CMA also while the peer is stopped."""

    def __init__(
        self,
        frames: FrameSocket,
        slot_bytes: int,
        num_slots: int,
        transport: str,
        reader: Reader[PendingT],
        own: PoolRegion | None = None,
    ) -> None:
        """Owns the reader from here on. own: the own pool, if reads arrive there that are to."""
        super().__init__(frames, slot_bytes, num_slots, transport)
        self._reader, self._own = reader, own

    def read_blocks(self, slots: Sequence[int], into: Destination, part: Part | None = None) -> BlockRead:
        self._check_read(slots, into, part)
        self._frames.check_alive()
        with self._ending():
            return OneSidedRead(self, self._reader.start(runs_of(slots, self.slot_bytes, into, part)))

    def read_into_pool(self, slots: Sequence[int], own_slots: Sequence[int]) -> BlockRead | None:
        """See PlacingLink."""
        if self._own is None:
            return None
        own_num_slots = self._own.num_bytes // self.slot_bytes
        if problem := slots_problem(slots, self.num_slots) or slots_problem(own_slots, own_num_slots):
            raise MalformedMessage(problem)
        self._frames.check_alive()
        with self._ending():
            runs = runs_into_pool(slots, self.slot_bytes, own_slots, self._own.address)
            return OneSidedRead(self, self._reader.start(runs))

    def advance(self, pending: PendingT) -> bool:
        """Move the link's reads on; whether anything moved. Raises LinkClosed."""
        with self._ending():
            moved = not pending.is_complete and self._reader.progress(pending)
            if pending.is_complete or not moved:
                # Memory outlives its process: only an open connection says that the owner did not die meanwhile.
                self._frames.check_alive()
            return moved

    def wait(self, pending: PendingT, timeout_s: float) -> None:
        """Move the link's reads on until this one is complete. Raises as BlockRead.wait does."""
        started = time.monotonic()
        with self._ending(), self._frames.in_use():
            while True:
                moved = self.advance(pending)
                if pending.is_complete:
                    return
                waited_s = time.monotonic() - started
                if waited_s >= timeout_s:
                    # As a MappedRead, no variable has the error that is raised.
                    self._end_reads(str(LinkTimeout(self.peer, timeout_s)))
                    raise LinkTimeout(self.peer, timeout_s)
                if not moved:
                    self._reader.rest(self._frames.fileno(), waited_s, timeout_s - waited_s)

    def close(self) -> None:
        super().close()
        self._reader.close()

    def abort(self) -> None:
        super().abort()
        self._reader.close()

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """What goes wrong with a read ends the link."""
        try:
            yield
        except (OneSidedError, LinkClosed) as error:
            raise self._end_reads(error.why) from None

    def _end_reads(self, why: str) -> LinkClosed:
        """Nothing is written into the destinations of reads afterwards. Returns the error to raise."""
        closed = self._frames.kill(why)
        self._reader.close()
        return closed


class OneSidedRead(Generic[PendingT]):
    """See BlockRead."""

    def __init__(self, link: OneSidedLink[PendingT], pending: PendingT) -> None:
        self._link, self._pending = link, pending
        self._is_complete = False

    def poll(self) -> bool:
        if not self._is_complete:
            self._link.advance(self._pending)
            self._is_complete = self._pending.is_complete
        return self._is_complete

    def wait(self, timeout_s: float) -> None:
        if not self._is_complete:
            self._link.wait(self._pending, timeout_s)
            self._is_complete = True
