"""Broadcasts on their way: each is encoded once, when its turn has come, and sent to a few routes at a time, so that
nothing else waits for long."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from itertools import islice

import zmq

from distkv.actors.unsent import UnsentMessages
from distkv.control.commands import Broadcast
from distkv.errors import WireError
from distkv.wire.channel import ServerChannel
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.messages.envelope import ToGManager

ROUTES_AT_ONCE = 128
"""Sent to so many before others have their turn: about a millisecond."""
MEMBERS_OF_A_ROUTE = 16
"""To encode so many members takes as long as to send to one route."""


class Outbox:
    """Sends broadcasts in order, each of them to its routes in order. One that no reader would accept is left out."""

    def __init__(self, server: ServerChannel[ToGManager], envelopes: EnvelopeFactory) -> None:
        self._server = server
        self._envelopes = envelopes
        self._unsent = UnsentMessages()
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[Broadcast, str]] = deque()
        self._begun: tuple[zmq.Frame, Iterator[bytes]] | None = None  # of the first in the queue
        self._turn: asyncio.Handle | None = None

    def put(self, broadcast: Broadcast, cause: str) -> None:
        """Send it, the first of it at once unless another one was sent in this turn of the loop, or is on its way."""
        self._queue.append((broadcast, cause))
        if self._turn is None:
            self._send_some()

    def close(self) -> None:
        """Send no more."""
        self._queue.clear()
        self._begun = None
        if self._turn is not None:
            self._turn.cancel()

    def _send_some(self) -> None:
        if not self._queue:
            self._turn = None
            return
        left = ROUTES_AT_ONCE
        while self._queue and left > 0:
            if self._begun is None:
                broadcast, cause = self._queue[0]
                try:
                    frame = self._server.encoded(self._envelopes.wrap(broadcast.body, cause))
                except WireError as error:
                    self._unsent.report(broadcast.body, error)
                    self._queue.popleft()
                    continue
                self._begun = frame, iter(broadcast.routes)
                left = max(1, left - len(broadcast.body.members) // MEMBERS_OF_A_ROUTE)
            frame, waiting = self._begun
            routes = tuple(islice(waiting, left))
            if len(routes) < left:
                self._queue.popleft()
                self._begun = None
            self._server.send_to_all(routes, frame)
            left -= len(routes)
        self._turn = self._loop.call_soon(self._send_some)
