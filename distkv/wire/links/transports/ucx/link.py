"""The tensor link that reads by UCX: frames go over a socket, blocks by one-sided gets."""

from __future__ import annotations

import math
import select
import time
from collections.abc import Sequence

from distkv.errors import LinkClosed, LinkTimeout
from distkv.wire.links.base import BlockRead
from distkv.wire.links.frames import FrameSocket
from distkv.wire.links.pool_memory import Part
from distkv.wire.links.runs import Destination, runs_of
from distkv.wire.links.transports.stream_link import StreamLink
from distkv.wire.links.transports.ucx.library import UcxError
from distkv.wire.links.transports.ucx.reader import Gets, Reader

_LONGEST_SLEEP_S = 0.1
"""While gets are under way: what carries them may have nothing to signal with."""


class UcxLink(StreamLink):
    """A TensorLink that reads without the peer's Python; by RDMA and CMA also while the peer is stopped."""

    def __init__(self, frames: FrameSocket, slot_bytes: int, num_slots: int, reader: Reader) -> None:
        """Owns the reader from here on."""
        super().__init__(frames, slot_bytes, num_slots, transport="ucx")
        self._reader = reader
        self._sleep = select.poll()
        self._sleep.register(reader.event_fd, select.POLLIN)
        # Bytes of the peer do not wake a read, its end does.
        self._sleep.register(frames.fileno(), select.POLLRDHUP)

    def read_blocks(self, slots: Sequence[int], into: Destination, part: Part | None = None) -> BlockRead:
        self._check_read(slots, into, part)
        self._frames.check_alive()
        try:
            gets = self._reader.start(runs_of(slots, self.slot_bytes, into, part))
        except UcxError as error:
            raise self._end_reads(error.why) from None
        return UcxRead(self, gets)

    def advance(self, gets: Gets) -> tuple[bool, bool]:
        """Move the link's reads on: whether these gets are complete, and whether anything moved. Raises LinkClosed."""
        moved = False
        try:
            if gets.left:
                moved = self._reader.progress()
            if not gets.left:
                self._frames.check_alive()
        except UcxError as error:
            raise self._end_reads(error.why) from None
        except LinkClosed as closed:
            raise self._end_reads(closed.why) from None
        return not gets.left, moved

    def wait(self, gets: Gets, timeout_s: float) -> None:
        """Move the link's reads on until these gets are complete. Raises as BlockRead.wait does."""
        try:
            with self._frames.in_use():
                self._wait(gets, timeout_s)
        except LinkClosed as closed:
            raise self._end_reads(closed.why) from None

    def close(self) -> None:
        super().close()
        self._reader.close()

    def abort(self) -> None:
        super().abort()
        self._reader.close()

    def _wait(self, gets: Gets, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            is_complete, moved = self.advance(gets)
            if is_complete:
                return
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                late = LinkTimeout(self.peer, timeout_s)
                self._end_reads(str(late))
                raise late
            if not moved:
                self._sleep_until_something(min(left_s, _LONGEST_SLEEP_S))

    def _sleep_until_something(self, at_most_s: float) -> None:
        try:
            can_sleep = self._reader.arm()
        except UcxError as error:
            raise self._end_reads(error.why) from None
        if not can_sleep:
            return
        for fd, _events in self._sleep.poll(math.ceil(at_most_s * 1000)):
            if fd != self._reader.event_fd:
                raise self._end_reads("it ended")

    def _end_reads(self, why: str) -> LinkClosed:
        """Nothing is written into the destinations of reads afterwards. Returns the error to raise."""
        closed = self._frames.kill(why)
        self._reader.close()
        return closed


class UcxRead:
    """See BlockRead."""

    def __init__(self, link: UcxLink, gets: Gets) -> None:
        self._link, self._gets = link, gets
        self._is_complete = False

    def poll(self) -> bool:
        if not self._is_complete:
            self._is_complete, _moved = self._link.advance(self._gets)
        return self._is_complete

    def wait(self, timeout_s: float) -> None:
        if not self._is_complete:
            self._link.wait(self._gets, timeout_s)
            self._is_complete = True
