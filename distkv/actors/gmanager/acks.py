"""Acknowledgements that say nothing but "heard": they wait for a moment, so that several leave at once.

One at a time, the thread that sends them would be woken for each, which takes longer than to make it. Very many at a
time, and what comes meanwhile is read late: that thread needs ten microseconds and more for each of them.
"""

from __future__ import annotations

import asyncio

from distkv.wire.channel import ServerChannel
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.messages.envelope import ToGManager
from distkv.wire.messages.to_rmanager import HeartbeatAck

ACK_WAIT_S = 0.003
"""Where few come."""
MOST_TOGETHER = 10
"""Every millisecond at 10,000 heartbeats a second."""


class Acks:
    """Sends them soon. Another answer to a route comes after those that wait for it, if `send_now` is called before;
    a member list may overtake them, for it says itself how old it is.

    Created under the running loop.
    """

    def __init__(self, server: ServerChannel[ToGManager], envelopes: EnvelopeFactory) -> None:
        self._server = server
        self._envelopes = envelopes
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[bytes, list[bytes]] = {}
        self._num_waiting = 0
        self._timer: asyncio.TimerHandle | None = None

    def put(self, route: bytes, ack: HeartbeatAck, cause: str) -> None:
        """Send it within ACK_WAIT_S, in order; at once with those that wait if it is the last of MOST_TOGETHER."""
        frame = self._server.encoded_for(route, self._envelopes.wrap(ack, cause))
        if frame is None:
            return
        if (waiting := self._waiting.get(route)) is None:
            self._waiting[route] = [frame]
        else:
            waiting.append(frame)
        self._num_waiting += 1
        if self._num_waiting >= MOST_TOGETHER:
            self._send_all()
        elif self._timer is None:
            self._timer = self._loop.call_later(ACK_WAIT_S, self._send_all)

    def send_now(self, route: bytes) -> None:
        """Send those that wait for this route."""
        if (frames := self._waiting.pop(route, None)) is not None:
            self._num_waiting -= len(frames)
            self._server.send_each((route, frame) for frame in frames)

    def close(self) -> None:
        """Send no more; they may be lost."""
        self._waiting.clear()
        self._num_waiting = 0
        self._stop_timer()

    def _send_all(self) -> None:
        self._stop_timer()
        self._num_waiting = 0
        waiting, self._waiting = self._waiting, {}
        self._server.send_each((route, frame) for route, frames in waiting.items() for frame in frames)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
