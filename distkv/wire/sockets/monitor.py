"""What ZeroMQ tells of the connections of a socket, under the running loop.

ZeroMQ's thread waits where a monitor's queue is full, and everything in the process with it. So the queue has no bound.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import Callable
from contextlib import ExitStack

import zmq

_EVENT = struct.Struct("=Hi")


class Monitor:
    """Calls `on_event` in the loop with each of `events` and its value, mostly a descriptor, until `close`."""

    def __init__(self, socket: zmq.Socket[bytes], events: int, on_event: Callable[[int, int], None]) -> None:
        self.closed = False
        self._on_event = on_event
        loop, endpoint = asyncio.get_running_loop(), f"inproc://monitor-{secrets.token_hex(8)}"
        self._monitor: zmq.Socket[bytes] = socket.context.socket(zmq.PAIR)
        with ExitStack() as undo:
            undo.callback(self._monitor.close, linger=0)
            self._monitor.set(zmq.RCVHWM, 0)
            socket.monitor(endpoint, events)
            undo.callback(socket.disable_monitor)
            self._monitor.connect(endpoint)
            fd = int(self._monitor.get(zmq.FD))
            loop.add_reader(fd, self._drain)
            undo.callback(loop.remove_reader, fd)
            self._undo = undo.pop_all()
        # ZeroMQ signals the descriptor only to a reader that has found nothing.
        self._drain()

    def close(self) -> None:
        """Tell no more; safe to call twice. All of it is closed, also where a part of that fails."""
        if not self.closed:
            self.closed = True
            self._undo.close()

    def _drain(self) -> None:
        while not self.closed:
            try:
                head, _endpoint = self._monitor.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            event, value = _EVENT.unpack(head)
            self._on_event(event, value)
