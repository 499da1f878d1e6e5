"""A bound on what ZeroMQ keeps of each connection: of the message that it has begun and does not end, and of others.

ZeroMQ keeps the parts of a message to itself until the last has come, however many they are. But the kernel knows how
much came by a connection: where nothing waits to be read, what was not read is a part of one message. Where something
waits, `ReadingPace` tells whether that is too much.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from distkv.wire.sockets.reading_pace import ReadingPace
from distkv.wire.sockets.tcp_connection import received_bytes, shut_down, waiting_bytes

INEXACT_BYTES = 16 * 2**20
"""More than what comes besides messages."""
HEADER_BYTES = 9
"""The most that ZeroMQ writes before a frame."""
ROUND_S = 1.0
SLICES = 20
"""A round looks at all connections, in so many slices: a microsecond or two for each keeps the loop for long."""
MOST_BYTES = 2**30
"""Of messages that are not complete, by all connections together."""
LEAST_BYTES = 2**20
"""One that has begun with less does not count for that."""


class UnfinishedMessages:
    """Shuts connections by which more came of one message than a message may be, or far more than is read, until
    `close`; and where what was begun by all takes more than MOST_BYTES, those that have begun with most. Create it
    under the loop.

    connections: descriptors of those that are open. nothing_waits: whether all that is complete was read. on_shut is
    called with one that was shut, on_heard with one by which something came since the last round, and all that came.
    judges_pace: whether one is shut by which far more comes than is read. Cost per message: one entry of a dict; per
    connection and round: one question to the kernel.
    """

    def __init__(
        self,
        connections: Collection[int],
        max_message_bytes: int,
        nothing_waits: Callable[[], bool],
        on_shut: Callable[[int], None],
        on_heard: Callable[[int, int], None] = lambda _descriptor, _received: None,
        *,
        judges_pace: bool = True,
    ) -> None:
        self._connections = connections
        # One message that is not complete, and before it one that ZeroMQ's thread is about to hand over.
        self._most_bytes = 2 * max_message_bytes + INEXACT_BYTES
        self._nothing_waits = nothing_waits
        self._on_shut, self._on_heard = on_shut, on_heard
        self._judges_pace = judges_pace
        self._read: dict[int, tuple[int, int]] = {}  # bytes and frames
        self._received: dict[int, int] = {}
        self._pace = ReadingPace()
        self._begun_bytes: dict[int, int] = {}  # in this round
        self._to_look_at: list[int] = []
        self._slice, self._pause_s = 0, ROUND_S
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(ROUND_S, self._look)

    def read(self, descriptor: int, frames: int, size_bytes: int) -> None:
        """So many frames were read of this connection, of so many bytes in all."""
        read_bytes, read_frames = self._read.get(descriptor, (0, 0))
        self._read[descriptor] = read_bytes + size_bytes + frames * HEADER_BYTES, read_frames + frames

    def close(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look(self) -> None:
        if not self._to_look_at:
            self._bound_all()
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
        if received != self._received.get(descriptor):
            self._received[descriptor] = received
            self._on_heard(descriptor, received)
        read_bytes, read_frames = self._read.get(descriptor, (0, 0))
        # More was read than came where headers were shorter, or where the descriptor was another connection's before.
        read_bytes = min(received, read_bytes)
        self._read[descriptor] = read_bytes, read_frames
        unread_bytes = received - read_bytes
        is_too_far_behind = (
            self._judges_pace
            and self._pace.is_too_far_behind(descriptor, received, read_bytes, read_frames)
            and unread_bytes > self._most_bytes  # what comes next may be far longer than what was read
        )
        if unread_bytes < LEAST_BYTES and not is_too_far_behind:
            return
        kept_bytes = unread_bytes - waiting_bytes(descriptor)
        if not self._nothing_waits():
            is_too_much = is_too_far_behind
        else:
            is_too_much = kept_bytes > self._most_bytes
            self._begun_bytes[descriptor] = kept_bytes
        if is_too_much:
            self._shut(descriptor, received)

    def _bound_all(self) -> None:
        """At the end of a round."""
        begun_bytes, self._begun_bytes = self._begun_bytes, {}
        excess = sum(begun_bytes.values()) - MOST_BYTES
        if excess <= 0:
            return
        for descriptor, size_bytes in sorted(begun_bytes.items(), key=lambda one: one[1], reverse=True):
            if excess > 0:
                self._shut(descriptor, size_bytes)
                excess -= size_bytes

    def _shut(self, descriptor: int, received: int) -> None:
        if shut_down(descriptor, received=received):
            self._on_shut(descriptor)
