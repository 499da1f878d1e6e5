"""The private channel between an rManager and one process of its engine worker: a pair of connected Unix sockets.

The worker inherits its end when it is started, so the channel has no name, and nobody else can reach it. The rManager's
end lives in asyncio; the worker's blocks, because the worker has plain threads. A message is [size u32, little-endian]
and an envelope. No thread stands between who sends and who receives: each that had to wake would cost as much as the
message.

Delivery: in order, and none is lost while both ends live. What one end sent before it ended is read before the other
learns of the end: the worker by LinkClosed from `recv`, the rManager by the end of its child.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import struct
import threading
import time
from collections import deque
from typing import Self

from distkv.errors import LinkClosed, MalformedMessage
from distkv.wire.codec import encode_envelope
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.inboxes import WORKER_COMMANDS, WORKER_RESULTS
from distkv.wire.messages.envelope import Control, Envelope, FromWorker, ToWorker

MAX_PIPE_MESSAGE_BYTES = 64 * 2**20
_SIZE = struct.Struct("<I")
_READ_BYTES, _MOST_READ_BYTES = 16 * 1024, 2**20
"""Read at once: some dozen messages, after which a loop has other tasks; of one that is larger, more."""
_MOST_WAITING = 1024
"""Results that nobody has taken; more stay with the worker."""


class WorkerPipe:
    """The rManager's end. worker_end: to be given to the worker, as a descriptor; then closed here."""

    def __init__(self) -> None:
        """Needs a running loop."""
        self._sock, self.worker_end = socket.socketpair()
        self._sock.setblocking(False)
        self._frames = _Frames()
        self._unsent: deque[memoryview] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._is_closed = self._is_reading = self._is_stuck = False
        self._loop = asyncio.get_running_loop()

    def send(self, envelope: Envelope[ToWorker]) -> None:
        """Send a command, or keep it until the worker has taken those before. Never blocks."""
        if not self._is_closed:
            self._unsent.append(memoryview(_framed(envelope)))
            if len(self._unsent) == 1:
                self._flush()

    async def recv(self) -> Envelope[FromWorker]:
        """The next message of the worker. Raises MalformedMessage, or LinkClosed once closed here."""
        while (message := self._frames.take()) is None:
            if self._is_closed:
                raise LinkClosed("worker", "it was closed on this side")
            if not self._is_reading:
                self._is_reading = True
                self._loop.add_reader(self._sock, self._read)
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return WORKER_RESULTS.decode(message, MAX_PIPE_MESSAGE_BYTES)

    def close(self) -> None:
        """Close; what the system has taken still arrives. More than once is fine."""
        self.worker_end.close()
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
            self._unsent.clear()
            self._sock.close()
            self._wake()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> None:
        try:
            has_ended = not self._frames.fill(self._sock, 0)
        except BlockingIOError:
            return
        except OSError:
            has_ended = True
        if has_ended or self._frames.num_whole >= _MOST_WAITING:
            self._is_reading = False
            self._loop.remove_reader(self._sock)
        if not has_ended:
            self._wake()

    def _flush(self) -> None:
        try:
            while self._unsent:
                sent = self._sock.send(self._unsent[0])
                if sent == len(self._unsent[0]):
                    self._unsent.popleft()
                else:
                    self._unsent[0] = self._unsent[0][sent:]
        except BlockingIOError:
            if not self._is_stuck:
                self._is_stuck = True
                self._loop.add_writer(self._sock, self._flush)
            return
        except OSError:
            self._unsent.clear()  # the worker is gone, which whoever started it learns
        if self._is_stuck:
            self._is_stuck = False
            self._loop.remove_writer(self._sock)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class WorkerEnd:
    """The worker's end. One thread receives, any may send. Owns `sock`."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        sock.setblocking(True)
        sock.set_inheritable(False)
        self._frames, self._envelopes = _Frames(), EnvelopeFactory("worker")
        self._lock = threading.Lock()
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)

    def recv(self, timeout_s: float) -> Envelope[ToWorker] | None:
        """The next command, or None after `timeout_s`.

        Raises MalformedMessage, and LinkClosed when the rManager is gone (every command it sent is read before).
        """
        deadline = time.monotonic() + timeout_s
        while (message := self._frames.take()) is None:
            left_s = deadline - time.monotonic()
            if not self._readable.poll(max(0, round(left_s * 1000))):
                return None
            with contextlib.suppress(ConnectionError):
                if self._frames.fill(self._sock, socket.MSG_DONTWAIT):
                    continue
            raise LinkClosed("rManager", "it ended")
        return WORKER_COMMANDS.decode(message, MAX_PIPE_MESSAGE_BYTES)

    def send(self, message: FromWorker, cause: str = "") -> None:
        """Send a result; `cause` is the id of the command's envelope. Those of all threads leave in the order of these
        calls. Waits while the rManager takes nothing; does nothing once that is gone, which `recv` says."""
        with self._lock, contextlib.suppress(ConnectionError):
            self._sock.sendall(_framed(self._envelopes.wrap(message, cause)))

    def close(self) -> None:
        """Close; what was sent still arrives."""
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Frames:
    """Takes what comes by a socket apart. num_whole: messages that are there and were not taken."""

    def __init__(self) -> None:
        self._whole: deque[bytes] = deque()
        self._rest = bytearray()

    @property
    def num_whole(self) -> int:
        return len(self._whole)

    def take(self) -> bytes | None:
        """The next message. Raises MalformedMessage where one is announced that is too long."""
        if self._whole:
            return self._whole.popleft()
        if self._missing > MAX_PIPE_MESSAGE_BYTES:
            raise MalformedMessage(f"a message of the pipe has at most {MAX_PIPE_MESSAGE_BYTES} bytes")
        return None

    def fill(self, sock: socket.socket, flags: int) -> bool:
        """Receive once; False when the other end has ended."""
        if self._missing > MAX_PIPE_MESSAGE_BYTES:
            return False
        came = sock.recv(max(_READ_BYTES, min(self._missing, _MOST_READ_BYTES)), flags)
        self._rest += came
        at = 0
        while len(self._rest) - at >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._rest, at)
            end = at + _SIZE.size + size
            if end > len(self._rest):
                break
            self._whole.append(bytes(self._rest[at + _SIZE.size : end]))
            at = end
        del self._rest[:at]
        return bool(came)

    @property
    def _missing(self) -> int:
        """Bytes of the message that has begun to come."""
        if len(self._rest) < _SIZE.size:
            return 0
        return int(_SIZE.unpack_from(self._rest)[0]) + _SIZE.size - len(self._rest)


def _framed(envelope: Envelope[Control]) -> bytes:
    body = encode_envelope(envelope, MAX_PIPE_MESSAGE_BYTES)
    return _SIZE.pack(len(body)) + body
