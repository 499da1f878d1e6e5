"""The tensor link that reads by NIXL: frames go over a socket, blocks by READ lists."""

from __future__ import annotations

import time
from collections.abc import Sequence

from distkv.errors import LinkClosed, LinkTimeout
from distkv.wire.links.base import BlockRead
from distkv.wire.links.frames import FrameSocket
from distkv.wire.links.pool_memory import Part
from distkv.wire.links.runs import Destination, runs_of
from distkv.wire.links.transports.nixl.bindings import NixlError
from distkv.wire.links.transports.nixl.reading import Reader, Reading
from distkv.wire.links.transports.stream_link import StreamLink

EAGER_S = 200e-6
PAUSE_S = 100e-6
"""A read is looked at without a pause at first, then now and then: what carries it needs a processor, too."""


class NixlLink(StreamLink):
    """A TensorLink that reads without the peer's Python; by RDMA and CMA also while the peer is stopped."""

    def __init__(self, frames: FrameSocket, slot_bytes: int, num_slots: int, reader: Reader) -> None:
        """Owns the reader from here on."""
        super().__init__(frames, slot_bytes, num_slots, transport="nixl")
        self._reader = reader

    def read_blocks(self, slots: Sequence[int], into: Destination, part: Part | None = None) -> BlockRead:
        self._check_read(slots, into, part)
        self._frames.check_alive()
        try:
            reading = self._reader.start(runs_of(slots, self.slot_bytes, into, part))
        except NixlError as error:
            raise self._end_reads(error.why) from None
        return NixlRead(self, reading)

    def advance(self, reading: Reading) -> bool:
        """Move a read on; whether it is complete. Raises LinkClosed."""
        try:
            is_complete = self._reader.progress(reading)
            # Memory outlives its process: only an open connection says that the owner did not die before or meanwhile.
            self._frames.check_alive()
        except NixlError as error:
            raise self._end_reads(error.why) from None
        except LinkClosed as closed:
            raise self._end_reads(closed.why) from None
        return is_complete

    def wait(self, reading: Reading, timeout_s: float) -> None:
        """Move a read on until it is complete. Raises as BlockRead.wait does."""
        started = time.monotonic()
        while not self.advance(reading):
            waited_s = time.monotonic() - started
            if waited_s >= timeout_s:
                late = LinkTimeout(self.peer, timeout_s)
                self._end_reads(str(late))
                raise late
            if waited_s > EAGER_S:
                time.sleep(PAUSE_S)

    def close(self) -> None:
        super().close()
        self._reader.close()

    def abort(self) -> None:
        super().abort()
        self._reader.close()

    def _end_reads(self, why: str) -> LinkClosed:
        """Nothing is written into the destinations of reads afterwards. Returns the error to raise."""
        closed = self._frames.kill(why)
        self._reader.close()
        return closed


class NixlRead:
    """See BlockRead."""

    def __init__(self, link: NixlLink, reading: Reading) -> None:
        self._link, self._reading = link, reading
        self._is_complete = False

    def poll(self) -> bool:
        self._is_complete = self._is_complete or self._link.advance(self._reading)
        return self._is_complete

    def wait(self, timeout_s: float) -> None:
        if not self._is_complete:
            self._link.wait(self._reading, timeout_s)
            self._is_complete = True
