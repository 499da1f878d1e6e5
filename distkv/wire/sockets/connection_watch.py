"""Tells when a ZeroMQ connection comes up and when it drops; without it a dead peer is only silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import zmq

from distkv.errors import LinkClosed
from distkv.wire.sockets.monitor import Monitor

_EVENTS = zmq.Event.CONNECTED | zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED | zmq.Event.CONNECT_RETRIED
_ENDS = zmq.Event.DISCONNECTED, zmq.Event.CONNECT_RETRIED


class ConnectionWatch:
    """Follows the connection of a socket with a single peer. Create it before `socket.connect`, under the loop.

    connected: the peer is there. descriptors: of the connection, none where there is none. The callbacks run in the
    loop; `on_failed` whenever there is no connection and ZeroMQ is about to try again. ZeroMQ does not tell of one that
    `socket.disconnect` ends: it counts until an attempt to reach the next endpoint fails.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        name: str,
        on_connected: Callable[[], None],
        on_disconnected: Callable[[], None],
        on_failed: Callable[[], None],
    ) -> None:
        self.connected = False
        self.descriptors: set[int] = set()
        self._name = name
        self._on_connected = on_connected
        self._on_disconnected = on_disconnected
        self._on_failed = on_failed
        self._changed = asyncio.Event()
        self._monitor = Monitor(socket, _EVENTS, self._follow)

    async def wait_connected(self) -> None:
        """Return when the peer is there. Raises LinkClosed once closed here."""
        while not self.connected:
            if self._monitor.closed:
                raise LinkClosed(self._name, "it was closed on this side")
            await self._changed.wait()

    def close(self) -> None:
        """Stop watching; those who wait get LinkClosed."""
        if not self._monitor.closed:
            self._monitor.close()
            self._wake()

    def _wake(self) -> None:
        # Everyone who waits on the old event wakes; whoever comes later waits on a fresh one.
        self._changed.set()
        self._changed = asyncio.Event()

    def _follow(self, event: int, descriptor: int) -> None:
        if event == zmq.Event.CONNECTED:
            self.descriptors.add(descriptor)
        elif event == zmq.Event.DISCONNECTED:
            self.descriptors.discard(descriptor)
        elif event == zmq.Event.CONNECT_RETRIED:
            self.descriptors.clear()
        if event == zmq.Event.HANDSHAKE_SUCCEEDED and not self.connected:
            self.connected = True
            self._wake()
            self._on_connected()
        elif event in _ENDS and self.connected:
            self.connected = False
            self._on_disconnected()
        if event == zmq.Event.CONNECT_RETRIED and not self._monitor.closed:
            self._on_failed()
