"""Reads over a stream socket: requests for bounded pieces, a few ahead of their answers, which come in order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from distkv.errors import DistKVError, LinkTimeout, MalformedMessage
from distkv.wire.links.base import SEND_TIMEOUT_S
from distkv.wire.links.frames import FrameSocket
from distkv.wire.links.iovec import byte_views
from distkv.wire.links.runs import Destination
from distkv.wire.links.slot_views import SlotViews
from distkv.wire.messages.data import Blocks, Denied, ReadBlocks

PIECE_BYTES = 16 * 2**20
_AHEAD_BYTES = 2 * PIECE_BYTES
_AHEAD_PIECES = 16
# The owner reads no request while it sends an answer, so what is asked for ahead fits into the buffers between.
_PIECE_SLOTS = 8192


class StreamReads:
    """The reads of one link, in the order in which they were started. Used by the link's thread."""

    def __init__(self, frames: FrameSocket) -> None:
        self._frames = frames
        self._waiting: deque[_Piece] = deque()
        self._asked: deque[_Piece] = deque()

    def start(self, slots: Sequence[int], into: Destination, first_byte: int, size: int, *, whole: bool) -> StreamRead:
        """Ask for the first pieces. Raises LinkClosed, LinkTimeout. The caller has checked the request."""
        read = StreamRead(self)
        targets = _Targets(into)
        most = max(1, min(PIECE_BYTES // size, _PIECE_SLOTS))
        for first in range(0, len(slots), most):
            piece = tuple(slots[first : first + most])
            request = ReadBlocks(slots=piece, first_byte=first_byte, num_bytes=0 if whole else size)
            self._waiting.append(_Piece(read, request, targets, len(piece) * size))
            read.pieces_left += 1
        try:
            self._ask(SEND_TIMEOUT_S)
        except DistKVError as error:
            self.fail(error)
            raise
        return read

    def move_on(self, timeout_s: float) -> None:
        """Take the next answer, or what there is of it if `timeout_s` is 0.

        Raises LinkTimeout, after which it goes on where it stopped, LinkClosed, WireError.
        """
        deadline = time.monotonic() + timeout_s
        if not self._asked:
            self._frames.check_alive()
            raise AssertionError("nothing is asked for, though a read is not complete")
        piece = self._asked[0]
        try:
            if not piece.is_arriving:
                header, body_bytes = self._frames.recv_head(timeout_s)
                refuse_denied(self._frames, header)
                num_blocks = len(piece.request.slots)
                if not isinstance(header, Blocks) or header.num_blocks != num_blocks or body_bytes != piece.num_bytes:
                    got = f"{type(header).__name__} with {body_bytes}"
                    raise MalformedMessage(f"expected {num_blocks} rBlocks ({piece.num_bytes} bytes), got {got}")
                piece.is_arriving = True
                piece.parts = piece.targets.take(piece.num_bytes)
            self._frames.recv_body_into(piece.parts, deadline - time.monotonic())
            self._asked.popleft()
            piece.read.pieces_left -= 1
            self._ask(max(0.001, deadline - time.monotonic()) if timeout_s else SEND_TIMEOUT_S)
        except LinkTimeout:
            raise
        except DistKVError as error:
            self.fail(error)
            raise

    def fail(self, error: DistKVError) -> None:
        """No answer is taken any more, and no destination is held."""
        self._frames.kill(str(error))
        self._asked.clear()
        self._waiting.clear()

    def give_up(self, waited_s: float) -> LinkTimeout:
        """A read took too long; returns the error to raise."""
        late = LinkTimeout(self._frames.peer, waited_s)
        self.fail(late)
        return late

    def _ask(self, timeout_s: float) -> None:
        ahead = sum(piece.num_bytes for piece in self._asked)
        while self._waiting and len(self._asked) < _AHEAD_PIECES:
            piece = self._waiting[0]
            if self._asked and ahead + piece.num_bytes > _AHEAD_BYTES:
                return
            self._frames.send(piece.request, (), timeout_s)
            self._asked.append(self._waiting.popleft())
            ahead += piece.num_bytes


class StreamRead:
    """See BlockRead."""

    def __init__(self, reads: StreamReads) -> None:
        self.pieces_left = 0
        self._reads = reads

    def poll(self) -> bool:
        if self.pieces_left:
            try:
                self._reads.move_on(0.0)
            except LinkTimeout:
                return False
        return not self.pieces_left

    def wait(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while self.pieces_left:
            try:
                self._reads.move_on(deadline - time.monotonic())
            except LinkTimeout:
                raise self._reads.give_up(timeout_s) from None


def refuse_denied(frames: FrameSocket, header: object) -> None:
    """Raise LinkClosed if the peer has denied something: the link ends."""
    if isinstance(header, Denied):
        raise frames.kill(f"it refused: {header.field} should be {header.expected}, got {header.got}")


class _Piece:
    """Blocks of one read in one answer; `parts` are what is left to fill of one that is arriving."""

    def __init__(self, read: StreamRead, request: ReadBlocks, targets: _Targets, num_bytes: int) -> None:
        self.read, self.request, self.targets, self.num_bytes = read, request, targets, num_bytes
        self.is_arriving = False
        self.parts: list[memoryview] = []


class _Targets:
    """The destination of a read, handed out piece by piece. Views of slots are made when the first is on its way: the
    owner works meanwhile."""

    def __init__(self, into: Destination) -> None:
        self._slots = into if isinstance(into, SlotViews) else None
        self._views, self._left = byte_views(() if self._slots is not None else into)
        self._views.reverse()

    def take(self, size: int) -> list[memoryview]:
        if self._slots is not None:
            self._views, self._left = byte_views([self._slots])
            self._views.reverse()
            self._slots = None
        if size == self._left:
            return self._views[::-1]
        self._left -= size
        taken: list[memoryview] = []
        while size:
            view = self._views.pop()
            if len(view) > size:
                self._views.append(view[size:])
                view = view[:size]
            taken.append(view)
            size -= len(view)
        return taken
