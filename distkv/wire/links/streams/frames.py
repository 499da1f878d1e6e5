"""Frames on a byte stream: [magic u32, header_bytes u32, body_bytes u64], MessagePack header, raw body.

Numbers are little-endian. Reading can be interrupted by a timeout anywhere and goes on where it stopped. Announced
sizes are checked before any memory is taken for them.
"""

from __future__ import annotations

import mmap
import socket
import struct
import time
from collections.abc import Sequence

from distkv.errors import FrameTooLarge, MalformedMessage, WireError
from distkv.wire.codec import decode_header, encode_header
from distkv.wire.links.base import MAX_BODY_BYTES, MAX_HEADER_BYTES, SEND_TIMEOUT_S, Buffer
from distkv.wire.links.memory.slot_views import SlotViews
from distkv.wire.links.streams.byte_stream import ByteStream
from distkv.wire.links.streams.iovec import byte_views
from distkv.wire.links.streams.socket_blocks import ArrivingBlocks
from distkv.wire.messages.data import DataMessage

MAGIC = 0x764B4431
_FIXED = struct.Struct("<IIQ")
_STAGE_BYTES = 32 * 1024
"""Received at once where a frame may begin: one of 16 KiB, as queries are, comes with its header by one call."""


class FrameSocket:
    """Frames over a connected stream socket, which it owns. One thread receives; the rest may be used by any.

    max_header_bytes, max_body_bytes: what is accepted from the peer; more ends the stream. asks: whether this end
    sends the requests, so that all it receives are answers that it awaits.
    """

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        *,
        max_header_bytes: int = MAX_HEADER_BYTES,
        max_body_bytes: int = MAX_BODY_BYTES,
        asks: bool = False,
    ) -> None:
        self.max_header_bytes, self.max_body_bytes = max_header_bytes, max_body_bytes
        self._stream = ByteStream(sock, peer, awaits=asks)
        self.fileno, self.check_open = self._stream.fileno, self._stream.check_open
        self.check_alive = self._stream.check_alive
        self.kill, self.end, self.in_use = self._stream.kill, self._stream.end, self._stream.in_use
        # Bytes [start, stop) of the stage came from the socket and are not used yet.
        self._stage = memoryview(bytearray(_STAGE_BYTES))
        self._start = self._stop = 0
        self._head: tuple[DataMessage, int] | None = None
        self._body = memoryview(b"")
        self._body_have = 0
        self.enter, self.leave = self._stream.enter, self._stream.leave

    @property
    def peer(self) -> str:
        return self._stream.peer

    @peer.setter
    def peer(self, name: str) -> None:
        self._stream.peer = name

    @property
    def within_host(self) -> bool:
        """See ByteStream."""
        return self._stream.within_host

    @property
    def peer_pid(self) -> int | None:
        """See FrameStream."""
        return self._stream.peer_pid

    @property
    def local_host(self) -> str:
        """See ByteStream."""
        return self._stream.local_host

    def send(self, header: DataMessage, buffers: Sequence[Buffer], timeout_s: float = SEND_TIMEOUT_S) -> None:
        """One frame, vectored. Raises FrameTooLarge (nothing sent), LinkClosed, LinkTimeout."""
        if len(buffers) == 1 and type(buffers[0]) is SlotViews and self._send_blocks(header, buffers[0], timeout_s):
            return
        parts, body_bytes = byte_views(buffers)
        parts.insert(0, memoryview(self.beginning(header, body_bytes)))
        self._stream.send(parts, len(parts[0]) + body_bytes, timeout_s)

    def _send_blocks(self, header: DataMessage, blocks: SlotViews, timeout_s: float) -> bool:
        return self._stream.send_blocks(self.beginning(header, blocks.nbytes), blocks, timeout_s)

    @staticmethod
    def beginning(header: DataMessage, body_bytes: int) -> bytes:
        """See FrameStream."""
        encoded = encode_header(header)
        for size, limit in ((len(encoded), MAX_HEADER_BYTES), (body_bytes, MAX_BODY_BYTES)):
            if size > limit:
                raise FrameTooLarge(size, limit)
        return _FIXED.pack(MAGIC, len(encoded), body_bytes) + encoded

    @property
    def has_received(self) -> bool:
        """See FrameStream."""
        return self._head is not None or self._stop > self._start

    def take(self) -> bytes:
        """See FrameStream."""
        assert self._head is None
        taken = bytes(self._stage[self._start : self._stop])
        self._start = self._stop = 0
        return taken

    def unread(self, taken: bytes) -> None:
        """See FrameStream."""
        rest = self.take()
        self._stage = memoryview(bytearray(taken + rest).ljust(_STAGE_BYTES, b"\0"))
        self._start, self._stop = 0, len(taken) + len(rest)

    def recv(self, timeout_s: float) -> tuple[DataMessage, memoryview]:
        """One frame; see TensorLink.recv."""
        deadline = time.monotonic() + timeout_s
        self._stream.enter()
        try:
            header, body_bytes = self._head or self._recv_head(deadline, timeout_s)
            if body_bytes > len(self._body):
                # A view of the last body may still exist somewhere, so memory is replaced, never resized.
                self._body = memoryview(mmap.mmap(-1, max(1 << (body_bytes - 1).bit_length(), mmap.PAGESIZE)))
            while self._body_have < body_bytes:
                self._body_have += self._some([self._body[self._body_have : body_bytes]], deadline, timeout_s)
        except WireError as e:
            self.kill(str(e))
            raise
        finally:
            self._stream.leave()
        self._head, self._body_have = None, 0
        return header, self._body[:body_bytes]

    def recv_head(self, timeout_s: float) -> tuple[DataMessage, int]:
        """A frame's header and the size of its body, which `recv_blocks` must take next if there is one."""
        self._stream.enter()
        try:
            head = self._head or self._recv_head(time.monotonic() + timeout_s, timeout_s)
        except WireError as e:
            self.kill(str(e))
            raise
        finally:
            self._stream.leave()
        if head[1] == 0:
            self._head = None
        return head

    def recv_blocks(self, blocks: ArrivingBlocks, timeout_s: float) -> None:
        """The body of the frame begun by `recv_head`, which has the size of these blocks. After LinkTimeout it goes on
        where it stopped: call again."""
        deadline = time.monotonic() + timeout_s
        self._stream.enter()
        try:
            if self._stop > self._start:
                self._start += blocks.take(self._stage[self._start : self._stop])
            if not self._stream.receive_blocks(blocks, deadline, timeout_s):
                raise self.kill("it ended in the middle of a frame")
        finally:
            self._stream.leave()
        self._head = None

    def _recv_head(self, deadline: float, timeout_s: float) -> tuple[DataMessage, int]:
        self._stage_at_least(_FIXED.size, deadline, timeout_s)
        magic, header_bytes, body_bytes = _FIXED.unpack_from(self._stage, self._start)
        if magic != MAGIC:
            raise MalformedMessage(f"a frame begins with {magic:#010x}, expected {MAGIC:#010x}")
        if header_bytes > self.max_header_bytes:
            raise FrameTooLarge(header_bytes, self.max_header_bytes)
        if body_bytes > self.max_body_bytes:
            raise FrameTooLarge(body_bytes, self.max_body_bytes)
        self._stage_at_least(_FIXED.size + header_bytes, deadline, timeout_s)
        at = self._start + _FIXED.size
        header = decode_header(self._stage[at : at + header_bytes], self.max_header_bytes)
        self._start = at + header_bytes
        self._head = header, body_bytes
        return self._head

    def _stage_at_least(self, size: int, deadline: float, timeout_s: float) -> None:
        if self._stop - self._start >= size:
            return
        if self._start:
            rest = self._stop - self._start
            self._stage[:rest] = self._stage[self._start : self._stop]
            self._start, self._stop = 0, rest
        if size > len(self._stage):
            self._stage = memoryview(bytearray(self._stage) + bytearray(size - len(self._stage)))
        while self._stop < size:
            self._stop += self._receive([self._stage[self._stop :]], deadline, timeout_s)

    def _some(self, views: list[memoryview], deadline: float, timeout_s: float) -> int:
        staged = min(self._stop - self._start, len(views[0]))
        if staged:
            views[0][:staged] = self._stage[self._start : self._start + staged]
            self._start += staged
            return staged
        return self._receive(views, deadline, timeout_s, fill=True)

    def _receive(self, views: list[memoryview], deadline: float, timeout_s: float, *, fill: bool = False) -> int:
        count = self._stream.receive(views, deadline, timeout_s, fill=fill)
        if count == 0:
            raise self.kill("it ended" + (" in the middle of a frame" if self.has_received else ""))
        return count
