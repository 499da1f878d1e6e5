"""A bound on the message that a connection has begun and does not end.

ZeroMQ keeps the parts of a message to itself until the last has come, however many they are. But the kernel knows how
much came by a connection: where nothing waits to be read, what was not read is a part of one message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from distkv.wire.sockets.tcp_connection import received_bytes, shut_down, waiting_bytes

INEXACT_BYTES = 16 * 2**20
"""More than what comes besides messages."""
HEADER_BYTES = 9
"""The most that ZeroMQ writes before a frame."""
ROUND_S = 1.0
SLICES = 20
"""A round looks at all connections, in so many slices: a microsecond or two for each keeps the loop for long."""


class UnfinishedMessages:
    """Shuts connections by which more came of one message than a message may be, until `close`. Create it under the
    loop.

    connections: descriptors of those that are open. nothing_waits: whether all that is complete was read. on_shut is
    called after one was shut. Cost per message: one entry of a dict; per connection and round: one question to the
    kernel.
    """

    def __init__(
        self,
        connections: Collection[int],
        max_message_bytes: int,
        nothing_waits: Callable[[], bool],
        on_shut: Callable[[], None],
    ) -> None:
        self._connections = connections
        # One message that is not complete, and before it one that ZeroMQ's thread is about to hand over.
        self._most_bytes = 2 * max_message_bytes + INEXACT_BYTES
        self._nothing_waits = nothing_waits
        self._on_shut = on_shut
        self._read_bytes: dict[int, int] = {}
        self._to_look_at: list[int] = []
        self._slice, self._pause_s = 0, ROUND_S
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(ROUND_S, self._look)

    def read(self, descriptor: int, frames: int, size_bytes: int) -> None:
        """So many frames were read of this connection, of so many bytes in all."""
        self._read_bytes[descriptor] = self._read_bytes.get(descriptor, 0) + size_bytes + frames * HEADER_BYTES

    def close(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look(self) -> None:
        if not self._to_look_at:
            self._to_look_at = list(self._connections)
            self._slice = len(self._to_look_at) // SLICES + 1
            # Who has one connection, as clients have, is not woken for empty slices.
            self._pause_s = ROUND_S * self._slice / max(len(self._to_look_at), self._slice)
        looked_at = self._to_look_at[-self._slice :]
        self._timer = self._loop.call_later(self._pause_s, self._look)
        del self._to_look_at[-self._slice :]
        for descriptor in looked_at:
            self._look_at(descriptor)

    def _look_at(self, descriptor: int) -> None:
        received = received_bytes(descriptor)
        # More was read than came where headers were shorter, or where the descriptor was another connection's before.
        read = self._read_bytes[descriptor] = min(received, self._read_bytes.get(descriptor, 0))
        excess = received - read - self._most_bytes
        if excess <= 0 or excess <= waiting_bytes(descriptor) or not self._nothing_waits():
            return
        if shut_down(descriptor, received=received):
            self._on_shut()
