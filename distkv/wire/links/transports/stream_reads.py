"""Reads over a stream socket: requests for bounded pieces, a few ahead of their answers, which come in order."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Sequence

from distkv.errors import DistKVError, LinkTimeout, MalformedMessage
from distkv.wire.links.base import SEND_TIMEOUT_S
from distkv.wire.links.memory.pool_memory import Part
from distkv.wire.links.memory.runs import Destination, places_of
from distkv.wire.links.streams.frames import FrameSocket
from distkv.wire.links.streams.socket_blocks import ArrivingBlocks
from distkv.wire.messages.data import Blocks, Denied, ReadBlocks

PIECE_BYTES = 16 * 2**20
_AHEAD_BYTES = 2 * PIECE_BYTES
_AHEAD_PIECES = 16
_PIECE_SLOTS = 8192
# The owner reads no request while it sends an answer, so what is asked for ahead fits into the buffers between.
_AHEAD_SLOTS = 2 * _PIECE_SLOTS


class StreamReads:
    """The reads of one link, in the order in which they were started. Used by the link's thread."""

    def __init__(self, frames: FrameSocket) -> None:
        self._frames = frames
        self._waiting: deque[_Piece] = deque()
        self._asked: deque[_Piece] = deque()

    def start(self, slots: Sequence[int], into: Destination, first_byte: int, size: int, *, whole: bool) -> StreamRead:
        """Ask for the first pieces. Raises LinkClosed, LinkTimeout, and ValueError for a destination that cannot be
        written. The caller has checked the request."""
        read = StreamRead(self)
        self._begin(read, slots, into, (first_byte, size), whole=whole, checked=False)
        return read

    def start_checked(self, slots: Sequence[int], into: Destination, size: int) -> CheckedStreamRead:
        """Likewise, of whole slots for which `can_check_arriving`."""
        read = CheckedStreamRead(self)
        self._begin(read, slots, into, (0, size), whole=True, checked=True)
        return read

    def _begin(
        self, read: StreamRead, slots: Sequence[int], into: Destination, part: Part, *, whole: bool, checked: bool
    ) -> None:
        first_byte, size = part
        places = places_of(into, size)
        most = max(1, min(PIECE_BYTES // size, _PIECE_SLOTS))
        for first in range(0, len(slots), most):
            which = slice(first, first + most)
            request = ReadBlocks(slots=tuple(slots[which]), first_byte=first_byte, num_bytes=0 if whole else size)
            self._waiting.append(_Piece(read, request, ArrivingBlocks(places, which, size, checked=checked)))
            read.pieces_left += 1
        try:
            self._ask(SEND_TIMEOUT_S)
        except DistKVError as error:
            self.fail(error)
            raise

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
                num_bytes = piece.blocks.num_bytes
                if not isinstance(header, Blocks) or header.num_blocks != num_blocks or body_bytes != num_bytes:
                    got = f"{type(header).__name__} with {body_bytes}"
                    raise MalformedMessage(f"expected {num_blocks} rBlocks ({num_bytes} bytes), got {got}")
                piece.is_arriving = True
            self._frames.recv_blocks(piece.blocks, deadline - time.monotonic())
            self._asked.popleft()
            piece.read.arrived(piece.blocks)
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
        ahead_bytes = sum(piece.blocks.num_bytes for piece in self._asked)
        ahead_slots = sum(len(piece.request.slots) for piece in self._asked)
        while self._waiting and len(self._asked) < _AHEAD_PIECES:
            piece = self._waiting[0]
            ahead_bytes, ahead_slots = ahead_bytes + piece.blocks.num_bytes, ahead_slots + len(piece.request.slots)
            if self._asked and (ahead_bytes > _AHEAD_BYTES or ahead_slots > _AHEAD_SLOTS):
                return
            self._frames.send(piece.request, (), timeout_s)
            self._asked.append(self._waiting.popleft())


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

    def arrived(self, _blocks: ArrivingBlocks) -> None:
        """All of its next piece are here."""
        self.pieces_left -= 1


class CheckedStreamRead(StreamRead):
    """See CheckedRead."""

    def __init__(self, reads: StreamReads) -> None:
        super().__init__(reads)
        self.checksums = array("Q")

    def arrived(self, blocks: ArrivingBlocks) -> None:
        super().arrived(blocks)
        self.checksums += blocks.checksums


def refuse_denied(frames: FrameSocket, header: object) -> None:
    """Raise LinkClosed if the peer has denied something: the link ends."""
    if isinstance(header, Denied):
        raise frames.kill(f"it refused: {header.field} should be {header.expected}, got {header.got}")


class _Piece:
    """Blocks of one read in one answer."""

    def __init__(self, read: StreamRead, request: ReadBlocks, blocks: ArrivingBlocks) -> None:
        self.read, self.request, self.blocks = read, request, blocks
        self.is_arriving = False
