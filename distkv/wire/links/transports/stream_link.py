"""The tensor link over a stream socket: reads go as requests for bounded pieces, served by the peer's thread."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from distkv.errors import DistKVError, LinkTimeout, MalformedMessage
from distkv.wire.links.base import SEND_TIMEOUT_S, Buffer
from distkv.wire.links.frames import FrameSocket
from distkv.wire.links.pool_memory import Part, read_problem
from distkv.wire.messages.data import Blocks, DataMessage, Denied, ReadBlocks

READ_PIECE_BYTES = 4 * 2**20
_PIECES_AHEAD = 2


class StreamLink:
    """A TensorLink whose frames and reads go through a socket. slot_bytes, num_slots: the peer's pool."""

    mapped: memoryview | None = None

    def __init__(self, frames: FrameSocket, slot_bytes: int, num_slots: int, transport: str) -> None:
        self.transport = transport
        self.slot_bytes, self.num_slots = slot_bytes, num_slots
        self._frames = frames

    @property
    def peer(self) -> str:
        return self._frames.peer

    def send(self, header: DataMessage, *buffers: Buffer, timeout_s: float = SEND_TIMEOUT_S) -> None:
        self._frames.send(header, buffers, timeout_s)

    def recv(self, timeout_s: float) -> tuple[DataMessage, memoryview]:
        header, body = self._frames.recv(timeout_s)
        self._refuse_denied(header)
        return header, body

    def read(
        self, slots: Sequence[int], into: Sequence[memoryview], timeout_s: float, part: Part | None = None
    ) -> None:
        self._check_read(slots, into, part)
        deadline = time.monotonic() + timeout_s
        first_byte, size = part or (0, self.slot_bytes)
        pieces = _pieces(slots, max(1, READ_PIECE_BYTES // size))
        targets = _Targets(into)
        requested: list[int] = []
        try:
            for piece in pieces:
                self._frames.send(ReadBlocks(slots=piece, first_byte=first_byte, num_bytes=size if part else 0), ())
                requested.append(len(piece))
                if len(requested) == _PIECES_AHEAD:
                    self._take(targets, requested.pop(0), size, deadline)
            for num_blocks in requested:
                self._take(targets, num_blocks, size, deadline)
        except DistKVError as e:
            self._frames.kill(str(e))
            if isinstance(e, LinkTimeout):
                raise LinkTimeout(self.peer, timeout_s) from None
            raise

    def close(self) -> None:
        self._frames.end(abrupt=False)

    def abort(self) -> None:
        self._frames.end(abrupt=True)

    def _take(self, targets: _Targets, num_blocks: int, size: int, deadline: float) -> None:
        header, body_bytes = self._frames.recv_head(deadline - time.monotonic())
        self._refuse_denied(header)
        expected = num_blocks * size
        if not isinstance(header, Blocks) or header.num_blocks != num_blocks or body_bytes != expected:
            raise MalformedMessage(
                f"expected {num_blocks} rBlocks ({expected} bytes), got {type(header).__name__} with {body_bytes}"
            )
        self._frames.recv_body_into(targets.take(expected), deadline - time.monotonic())

    def _refuse_denied(self, header: DataMessage) -> None:
        if isinstance(header, Denied):
            raise self._frames.kill(f"it refused: {header.field} should be {header.expected}, got {header.got}")

    def _check_read(self, slots: Sequence[int], into: Sequence[memoryview], part: Part | None) -> None:
        if problem := read_problem(self, slots, into, part):
            raise MalformedMessage(problem)


class _Targets:
    """The destination of a read, handed out piece by piece."""

    def __init__(self, into: Sequence[memoryview]) -> None:
        self._views = [view.cast("B") for view in into if view.nbytes]

    def take(self, size: int) -> list[memoryview]:
        taken: list[memoryview] = []
        while size:
            view = self._views[0]
            taken.append(view[:size])
            if len(view) > size:
                self._views[0] = view[size:]
            else:
                self._views.pop(0)
            size -= len(taken[-1])
        return taken


def _pieces(slots: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
    for first in range(0, len(slots), most):
        yield tuple(slots[first : first + most])
