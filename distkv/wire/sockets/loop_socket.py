"""A ZeroMQ socket under an event loop: `recv` waits, `send` never does.

ZeroMQ's descriptor only says that something may have happened; what happened must be asked for after every call on the
socket, or a wake-up is lost. That rule is kept here and nowhere else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import zmq

from distkv.errors import LinkClosed

_TURN_S = 0.002
"""A receiver that always finds a message lets the loop's other tasks run after so long."""
# Plain numbers: combining the library's enums makes a new one each time, twice for every message.
_IN, _OUT = int(zmq.POLLIN), int(zmq.POLLOUT)


class LoopSocket:
    """Owns `socket` and its place in the running loop; one task receives at a time.

    on_writable: called when the socket may take messages again. traces_source: whether `source` is to be found, which
    makes receiving slower. source: the descriptor of the connection by which the last message came, as it was then.
    """

    def __init__(self, socket: zmq.Socket[bytes], name: str, on_writable: Callable[[], None] | None = None) -> None:
        self.name = name
        self.traces_source = False
        self.source: int | None = None
        self._socket = socket
        self._on_writable = on_writable
        self._readable = asyncio.Event()
        self._closed = False
        self._turn_ends_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._fd = int(socket.get(zmq.FD))
        self._loop.add_reader(self._fd, self._check)

    async def recv(self) -> list[bytes]:
        """The frames of the next message. Cancelling loses nothing. Raises LinkClosed once closed here."""
        if time.monotonic() >= self._turn_ends_s:
            # A sender that never pauses must not keep the loop from its other tasks.
            await asyncio.sleep(0)
            self._turn_ends_s = time.monotonic() + _TURN_S
        while (frames := self.recv_now()) is None:
            self._readable.clear()
            await self._readable.wait()
            self._turn_ends_s = time.monotonic() + _TURN_S
        return frames

    def recv_now(self) -> list[bytes] | None:
        """The frames of the next message if it is here already, else None. Raises LinkClosed once closed here."""
        if self._closed:
            raise LinkClosed(self.name, "it was closed on this side")
        try:
            frames = self._traced() if self.traces_source else self._socket.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return None
        if self._on_writable is not None:
            self._check()
        return frames

    def send(self, frames: Sequence[bytes]) -> bool:
        """Hand a message to ZeroMQ; False when its queue is full or the route leads nowhere (any more)."""
        if self._closed:
            return False
        try:
            self._socket.send_multipart(frames, zmq.DONTWAIT)
        except zmq.ZMQError as e:
            if e.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            return False
        finally:
            self._check(sent=True)
        return True

    def send_to_all(self, routes: Iterable[bytes], frame: zmq.Frame) -> None:
        """As `send` to each route; the bytes are shared by all."""
        if self._closed:
            return
        for route in routes:
            try:
                self._socket.send(route, zmq.SNDMORE | zmq.DONTWAIT)
                self._socket.send(frame, zmq.DONTWAIT, copy=False)
            except zmq.ZMQError as e:
                if e.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                    raise
        self._check(sent=True)

    def has_waiting(self) -> bool:
        """Whether a message is here that was not received yet."""
        if self._closed:
            return False
        events = int(self._socket.get(zmq.EVENTS))
        if events & _IN:
            self._readable.set()
            return True
        return False

    def close(self, linger_s: float) -> None:
        """Close; messages handed over before get `linger_s` to leave. Waiting receivers get LinkClosed."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._fd)
        self._socket.close(linger=round(linger_s * 1000))
        self._readable.set()

    def _traced(self) -> list[bytes]:
        parts = self._socket.recv_multipart(zmq.DONTWAIT, copy=False)
        source: Any = parts[-1].get(zmq.SRCFD)
        self.source = int(source)
        return [part.bytes for part in parts]

    def _check(self, sent: bool = False) -> None:
        if self._closed:
            return
        events = int(self._socket.get(zmq.EVENTS))
        if events & _IN:
            self._readable.set()
        if events & _OUT and self._on_writable is not None and not sent:
            self._on_writable()
