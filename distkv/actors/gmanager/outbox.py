"""Broadcasts on their way: encoded once, and sent to a few routes at a time, so that nothing else waits for long."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from itertools import islice

import zmq

from distkv.control.commands import Broadcast
from distkv.wire.channel import ServerChannel
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.messages.envelope import ToGManager

ROUTES_AT_ONCE = 128
"""Sent to so many before others have their turn: about a millisecond."""


class Outbox:
    """Sends broadcasts in order, each of them to its routes in order."""

    def __init__(self, server: ServerChannel[ToGManager], envelopes: EnvelopeFactory) -> None:
        self._server = server
        self._envelopes = envelopes
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[zmq.Frame, Iterator[bytes]]] = deque()
        self._turn: asyncio.Handle | None = None

    def put(self, broadcast: Broadcast, cause: str) -> None:
        """Send it, the first of it at once unless another one is on its way."""
        frame = self._server.encoded(self._envelopes.wrap(broadcast.body, cause))
        self._queue.append((frame, iter(broadcast.routes)))
        if self._turn is None:
            self._send_some()

    def close(self) -> None:
        """Send no more."""
        self._queue.clear()
        if self._turn is not None:
            self._turn.cancel()

    def _send_some(self) -> None:
        self._turn = None
        left = ROUTES_AT_ONCE
        while self._queue and left:
            frame, waiting = self._queue[0]
            routes = tuple(islice(waiting, left))
            if len(routes) < left:
                self._queue.popleft()
            self._server.send_to_all(routes, frame)
            left -= len(routes)
        if self._queue:
            self._turn = self._loop.call_soon(self._send_some)
