"""What ZeroMQ tells of the connections of a socket, under the running loop.

ZeroMQ's thread waits where a monitor's queue is full, and everything in the process with it. So the queue has no bound.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack

import zmq

_EVENT = struct.Struct("=Hi")
_TURN_S = 0.002
"""So long it tells at a time: who connects and disconnects all the time must not keep the loop from its other tasks."""


class Monitor:
    """Calls `on_event` in the loop with each of `events` and its value, mostly a descriptor, until `close`. What that
    raises is an error of a callback, and the next event is told all the same."""

    def __init__(self, socket: zmq.Socket[bytes], events: int, on_event: Callable[[int, int], None]) -> None:
        self.closed = False
        self._on_event = on_event
        self._next_turn: asyncio.Handle | None = None
        loop, endpoint = asyncio.get_running_loop(), f"inproc://monitor-{secrets.token_hex(8)}"
        self._loop = loop
        self._monitor: zmq.Socket[bytes] = socket.context.socket(zmq.PAIR)
        with ExitStack() as undo:
            undo.callback(self._monitor.close, linger=0)
            self._monitor.set(zmq.RCVHWM, 0)
            socket.monitor(endpoint, events)
            undo.callback(socket.disable_monitor)
            self._monitor.connect(endpoint)
            fd = int(self._monitor.get(zmq.FD))
            loop.add_reader(fd, self._signalled)
            undo.callback(loop.remove_reader, fd)
            self._undo = undo.pop_all()
        # ZeroMQ signals the descriptor only to a reader that has found nothing.
        self._drain()

    def close(self) -> None:
        """Tell no more; safe to call twice. All of it is closed, also where a part of that fails."""
        if not self.closed:
            self.closed = True
            self._undo.close()

    def _signalled(self) -> None:
        if self._next_turn is None:
            self._drain()

    def _drain(self) -> None:
        self._next_turn = self._loop.call_soon(self._drain)  # before anything is told: that may raise
        if self._tell_some():
            self._next_turn.cancel()
            self._next_turn = None

    def _tell_some(self) -> bool:
        """Tell of what has happened, for a turn at most; whether that was all."""
        ends_s = time.monotonic() + _TURN_S
        while not self.closed:
            try:
                head, _endpoint = self._monitor.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                break
            event, value = _EVENT.unpack(head)
            self._on_event(event, value)
            if time.monotonic() >= ends_s:
                return False
        return True
