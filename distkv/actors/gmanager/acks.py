"""Acknowledgements that say nothing but "heard": they wait for a moment, so that many leave at once.

One at a time, the thread that sends them would be woken for each, which takes longer than to make it.
"""

from __future__ import annotations

import asyncio

from distkv.wire.channel import ServerChannel
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.messages.envelope import ToGManager
from distkv.wire.messages.to_rmanager import HeartbeatAck

ACK_WAIT_S = 0.003
"""Little beside a query's time, and at 10,000 heartbeats a second thirty of them."""


class Acks:
    """Sends them soon. Another answer to a route comes after those that wait for it, if `send_now` is called before;
    a member list may overtake them, for it says itself how old it is.

    Created under the running loop. No more wait than heartbeats are read in ACK_WAIT_S.
    """

    def __init__(self, server: ServerChannel[ToGManager], envelopes: EnvelopeFactory) -> None:
        self._server = server
        self._envelopes = envelopes
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[bytes, list[bytes]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def put(self, route: bytes, ack: HeartbeatAck, cause: str) -> None:
        """Send it within ACK_WAIT_S, in order."""
        frame = self._server.encoded_for(route, self._envelopes.wrap(ack, cause))
        if frame is None:
            return
        if (waiting := self._waiting.get(route)) is None:
            self._waiting[route] = [frame]
        else:
            waiting.append(frame)
        if self._timer is None:
            self._timer = self._loop.call_later(ACK_WAIT_S, self._send_all)

    def send_now(self, route: bytes) -> None:
        """Send those that wait for this route."""
        if (frames := self._waiting.pop(route, None)) is not None:
            self._server.send_each((route, frame) for frame in frames)

    def close(self) -> None:
        """Send no more; they may be lost."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _send_all(self) -> None:
        self._timer = None
        waiting, self._waiting = self._waiting, {}
        self._server.send_each((route, frame) for route, frames in waiting.items() for frame in frames)
