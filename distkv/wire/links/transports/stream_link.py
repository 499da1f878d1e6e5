"""The tensor link over a stream socket: its reads are served by the peer's thread."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from distkv.errors import MalformedMessage
from distkv.wire.links.base import SEND_TIMEOUT_S, BlockRead, Buffer, CheckedRead
from distkv.wire.links.memory.pool_memory import Part
from distkv.wire.links.memory.runs import Destination, read_problem
from distkv.wire.links.streams.frames import FrameSocket
from distkv.wire.links.streams.socket_blocks import can_check_arriving
from distkv.wire.links.transports.stream_reads import StreamReads, refuse_denied
from distkv.wire.messages.data import DataMessage


class StreamLink:
    """A TensorLink whose frames and reads go through a socket. slot_bytes, num_slots: the peer's pool.

    Links that read in other ways extend it by `read_blocks`.
    """

    mapped: memoryview | None = None

    def __init__(self, frames: FrameSocket, slot_bytes: int, num_slots: int, transport: str) -> None:
        self.transport = transport
        self.slot_bytes, self.num_slots = slot_bytes, num_slots
        self._frames = frames
        self._reads = StreamReads(frames)

    @property
    def peer(self) -> str:
        return self._frames.peer

    @property
    def within_host(self) -> bool:
        return self._frames.within_host

    @property
    def local_host(self) -> str:
        """See ByteStream."""
        return self._frames.local_host

    def send(self, header: DataMessage, *buffers: Buffer, timeout_s: float = SEND_TIMEOUT_S) -> None:
        self._frames.send(header, buffers, timeout_s)

    def recv(self, timeout_s: float) -> tuple[DataMessage, memoryview]:
        header, body = self._frames.recv(timeout_s)
        refuse_denied(self._frames, header)
        return header, body

    def read_blocks(self, slots: Sequence[int], into: Destination, part: Part | None = None) -> BlockRead:
        self._check_read(slots, into, part)
        first_byte, size = part or (0, self.slot_bytes)
        return self._reads.start(slots, into, first_byte, size, whole=part is None)

    def read(self, slots: Sequence[int], into: Destination, timeout_s: float, part: Part | None = None) -> None:
        self.read_blocks(slots, into, part).wait(timeout_s)

    @property
    def stream(self) -> FrameSocket:
        return self._frames

    def close(self) -> None:
        self._frames.end(abrupt=False)

    def abort(self) -> None:
        self._frames.end(abrupt=True)

    def _check_read(self, slots: Sequence[int], into: Destination, part: Part | None) -> None:
        if problem := read_problem(self, slots, into, part):
            raise MalformedMessage(problem)


class SocketLink(StreamLink):
    """What there is to a peer by a socket alone: blocks that are read are checked as they come."""

    def read_checked(self, slots: Sequence[int], into: Destination) -> CheckedRead | None:
        """See CheckingLink."""
        if not can_check_arriving(self.slot_bytes):
            return None
        self._check_read(slots, into, None)
        return self._reads.start_checked(slots, into, self.slot_bytes)

    def copy_checked(self, _slots: Sequence[int], _to: Sequence[int]) -> array[int] | None:
        """See CheckingLink; never, as the owner's answer would be waited for."""
        return None
