"""A connected stream socket with deadlines, whose end wakes whoever waits on it.

The socket blocks in the kernel with its own timeouts: one system call per wait, where a poll before it would make two.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from distkv.errors import LinkClosed, LinkTimeout
from distkv.wire.links.memory.slot_views import SlotViews
from distkv.wire.links.native import native
from distkv.wire.links.streams.iovec import advance
from distkv.wire.links.streams.socket_blocks import ArrivingBlocks, send_blocks

Sent = TypeVar("Sent")

_MAX_IOVECS = 1024
# How much longer than asked a wait may take, before the kernel's timeout is set anew.
_SLACK, _SLACK_S = 1.25, 0.001
LOOKS_S = 50e-6
"""Bytes that are awaited are looked for so long before they are slept for: a sleeping core takes as long to wake."""
_SOON_S = 2 * LOOKS_S
"""An end that answers awaits the next request if it waited no longer than that for the one before."""
_MOST_LEFT_OUT = 64
LEAST_BYTES_PER_S = 4e6
"""A peer that takes less is given up: a step waits for it with all its batch."""
LEAST_BLOCK_BYTES_PER_S = 2.5e5
"""The same of blocks, for which no step waits: what a slow network still gives."""


class Looks:
    """Whether a wait begins with a look. Who looks may keep a peer on the same core from running; so after each look in
    vain twice as many waits go without one, 64 at most, until one finds something.

    always: whether bytes are always awaited; else only when those before came soon.
    """

    def __init__(self, *, always: bool) -> None:
        self._always = self._expected = always
        self._pause = self._left_out = 0

    def wanted(self) -> bool:
        """Asked once for each wait."""
        if self._left_out:
            self._left_out -= 1
            return False
        return self._expected

    def looked(self, *, found: bool) -> None:
        """How a look ended."""
        self._pause = 0 if found else min(2 * self._pause or 1, _MOST_LEFT_OUT)
        self._left_out = self._pause

    def waited(self, seconds: float) -> None:
        """How long a wait took, a look included."""
        self._expected = self._always or seconds < _SOON_S


class ByteStream:
    """Owns `sock`. One thread receives, any send (whole calls never mix), any ends it.

    awaits: whether what is received was asked for, so that it comes soon.
    """

    def __init__(self, sock: socket.socket, peer: str, *, awaits: bool = False) -> None:
        sock.settimeout(None)
        self.peer = peer
        self._looks = Looks(always=awaits)
        self._sock = sock
        self._send_timeout_s = 0.0
        self._receive_timeout_s = 0.0
        self._why_dead = ""
        self._closing = False
        self._users = 0
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._guard, self._send_lock = threading.Lock(), threading.Lock()

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def within_host(self) -> bool:
        """Whether it is no TCP connection, so that the peer is on this host."""
        return self._sock.family == socket.AF_UNIX

    @property
    def peer_pid(self) -> int | None:
        """See FrameStream."""
        if not self.within_host:
            return None
        with self.in_use():
            try:
                return peer_pid(self._sock)
            except OSError as e:
                raise self.kill(e.strerror or str(e)) from None

    @property
    def local_host(self) -> str:
        """The own IP address by which the peer is linked; within a host that of loopback. Raises LinkClosed."""
        self.enter()
        try:
            return "127.0.0.1" if self._sock.family == socket.AF_UNIX else str(self._sock.getsockname()[0])
        except OSError as e:
            raise self.kill(e.strerror or str(e)) from None
        finally:
            self.leave()

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Between `enter` and `leave`: whoever waits for the socket meanwhile is woken by its end."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> None:
        """Begin to use the socket; every `enter` is followed by `leave`. Raises LinkClosed once it is dead."""
        with self._guard:
            if self._why_dead:
                raise LinkClosed(self.peer, self._why_dead)
            self._users += 1

    def leave(self) -> None:
        # The descriptor is closed by its last user, so that its number cannot be reused under a waiting call.
        with self._guard:
            self._users -= 1
            if self._closing and not self._users:
                self._sock.close()

    def send(self, parts: list[memoryview], size: int, timeout_s: float) -> None:
        """Send `parts`, `size` bytes together; the list is used up. Raises LinkClosed, and LinkTimeout when the peer
        takes no bytes for `timeout_s`, or `timeout_s` longer than it would at LEAST_BYTES_PER_S; dead after both."""
        self._send(partial(self._send_parts, parts, size, timeout_s), timeout_s)

    def send_blocks(self, head: bytes, blocks: SlotViews, timeout_s: float) -> bool:
        """Send `head` and the blocks by one native call; False, with nothing sent, where there is none. Raises as
        `send` does, by LEAST_BLOCK_BYTES_PER_S."""

        def transmit() -> bool:
            latest_s = time.monotonic() + timeout_s + blocks.nbytes / LEAST_BLOCK_BYTES_PER_S
            return send_blocks(self._sock.fileno(), head, blocks, latest_s)

        return self._send(transmit, timeout_s)

    def _send_parts(self, parts: list[memoryview], size: int, timeout_s: float) -> None:
        latest_s = time.monotonic() + timeout_s + size / LEAST_BYTES_PER_S
        while size:
            if time.monotonic() > latest_s:
                raise BlockingIOError
            sent = self._sock.sendmsg(parts[:_MAX_IOVECS] if len(parts) > _MAX_IOVECS else parts)
            size -= sent
            if size:
                advance(parts, sent)

    def _send(self, transmit: Callable[[], Sent], timeout_s: float) -> Sent:
        self.enter()
        try:
            with self._send_lock:
                if timeout_s != self._send_timeout_s:
                    self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(timeout_s))
                    self._send_timeout_s = timeout_s
                return transmit()
        except BlockingIOError:
            self.kill(f"it took too few bytes in {timeout_s} s")
            raise LinkTimeout(self.peer, timeout_s) from None
        except OSError as e:
            raise self.kill(e.strerror or str(e)) from None
        finally:
            self.leave()

    def receive(self, views: list[memoryview], deadline: float, timeout_s: float, *, fill: bool = False) -> int:
        """Fill some of `views`, at least a byte; between `enter` and `leave`. Returns 0 when the peer has ended.

        fill: all of the first 1,024 of them, if that much comes by the deadline: one call of the system, whatever it
        comes in.

        Raises LinkTimeout (naming `timeout_s`) at `deadline` on the monotonic clock, and LinkClosed.
        """
        began_s = time.monotonic()
        left_s = deadline - began_s
        flags = socket.MSG_WAITALL if fill else 0
        try:
            if left_s <= 0:
                flags = socket.MSG_DONTWAIT
            elif not left_s <= self._receive_timeout_s <= left_s * _SLACK + _SLACK_S:
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(left_s))
                self._receive_timeout_s = left_s
            if left_s > LOOKS_S and self._looks.wanted():
                self._looks.looked(found=self._look())
            if len(views) > 1:
                return self._sock.recvmsg_into(views[:_MAX_IOVECS], 0, flags)[0]
            count = self._sock.recv_into(views[0], 0, flags)
            if not fill:
                self._looks.waited(time.monotonic() - began_s)
            return count
        except BlockingIOError:
            raise LinkTimeout(self.peer, timeout_s) from None
        except OSError as e:
            raise self.kill(e.strerror or str(e)) from None

    def receive_blocks(self, blocks: ArrivingBlocks, deadline: float, timeout_s: float) -> bool:
        """All that is left of them; between `enter` and `leave`. False when the peer has ended. Raises as `receive`
        does, after which it goes on where it stopped."""
        if native("receive_blocks") is None:
            return self._receive_views(blocks, deadline, timeout_s)
        self._receive_timeout_s = 0.0
        try:
            return blocks.receive(self._sock.fileno(), deadline)
        except BlockingIOError:
            raise LinkTimeout(self.peer, timeout_s) from None
        except OSError as e:
            raise self.kill(e.strerror or str(e)) from None

    def _receive_views(self, blocks: ArrivingBlocks, deadline: float, timeout_s: float) -> bool:
        views = blocks.views()
        while views:
            count = self.receive(views, deadline, timeout_s, fill=True)
            if count == 0:
                return False
            blocks.note(count)
            advance(views, count)
        return True

    def _look(self) -> bool:
        """Until bytes are here, or LOOKS_S are over; whether they are."""
        until_s = time.monotonic() + LOOKS_S
        while not self._poll.poll(0):
            if time.monotonic() >= until_s:
                return False
            os.sched_yield()  # the peer may be on this core
        return True

    def check_open(self) -> None:
        """Raise LinkClosed once it is dead, as far as is known without a look at the socket."""
        self.enter()
        self.leave()

    def check_alive(self) -> None:
        """Raise LinkClosed if the peer has ended; reads nothing."""
        self.enter()
        try:
            if not self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                raise self.kill("it ended")
        except BlockingIOError:
            return
        except OSError as e:
            raise self.kill(e.strerror or str(e)) from None
        finally:
            self.leave()

    def kill(self, why: str) -> LinkClosed:
        """Nothing more can be sent or received; `end` is still to be called. Returns the error to raise."""
        self._why_dead = self._why_dead or why
        return LinkClosed(self.peer, self._why_dead)

    def end(self, abrupt: bool) -> None:
        """Close the socket; `abrupt` drops what was not sent yet. Waiting calls raise LinkClosed."""
        with self._guard:
            if self._closing:
                return
            self._closing = True
            self._why_dead = self._why_dead or "it was closed on this side"
            with contextlib.suppress(OSError):
                if abrupt:
                    self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                if self._users:
                    self._sock.shutdown(socket.SHUT_RDWR)
            if not self._users:
                self._sock.close()


def peer_pid(sock: socket.socket) -> int:
    """The process that has connected to, or listened at, the other end of a Unix socket. Raises OSError."""
    pid: int = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return pid


def _timeval(seconds: float) -> bytes:
    # Zero would mean for ever.
    micros = max(1, round(seconds * 1e6))
    return struct.pack("ll", micros // 1_000_000, micros % 1_000_000)
