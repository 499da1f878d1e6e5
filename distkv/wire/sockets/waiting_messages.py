"""What was read of ZeroMQ and waits here for its receiver: of each sender in order, the senders in turn.

ZeroMQ reads without a bound of its own, and does not say how much waits in it. What waits here is counted: who sends
faster than its messages are handled is found by that, however slowly they are handled.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from distkv.wire.sockets.flood_guard import QUOTA_BYTES, QUOTA_MESSAGES

PAUSE_S = 10
"""A process that stood still for so long finds what a client may have sent meanwhile within its quota."""

Frames = list[bytes | memoryview]


class WaitingLimit(NamedTuple):
    """Most frames and bytes that may wait here, of one sender and of all: a thousand prompts of 1 MiB may come at once.
    A short frame takes some 300 bytes."""

    frames: int = PAUSE_S * QUOTA_MESSAGES
    size_bytes: int = QUOTA_BYTES
    all_frames: int = 5 * PAUSE_S * QUOTA_MESSAGES
    all_bytes: int = 2 * QUOTA_BYTES


UNLIMITED = WaitingLimit(*[sys.maxsize] * len(WaitingLimit._fields))


class Excess(NamedTuple):
    """A sender of whom too much waits: the descriptor by which its last message came, and the bytes that wait."""

    sender: bytes
    source: int
    size_bytes: int


class WaitingMessages:
    """Messages by sender, their first frame; all are of one sender where they have none.

    A sender beyond a limit is told to `on_excess`, or if all together are, the one of whom most waits. Nothing more is
    kept of it until `forgive`, and what waits of it counts no more. Cost per message: constant; per sender that is told
    where all together are too many: a look at all.
    """

    def __init__(self, has_senders: bool, limit: WaitingLimit, on_excess: Callable[[Excess], None]) -> None:
        self._has_senders = has_senders
        self._limit = limit
        self._on_excess = on_excess
        self._turns: deque[bytes] = deque()
        self._senders: dict[bytes, _Sender] = {}
        self._stopped: set[bytes] = set()
        self._frames = self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._turns)

    def put(self, frames: Frames, source: int) -> None:
        """A message has come by the descriptor `source`."""
        sender = bytes(frames[0]) if self._has_senders else b""
        if sender in self._stopped:
            return
        if (waiting := self._senders.get(sender)) is None:
            waiting = self._senders[sender] = _Sender()
            self._turns.append(sender)
        waiting.messages.append((frames, source))
        self._count(waiting, frames, 1)
        limit = self._limit
        if waiting.frames > limit.frames or waiting.size_bytes > limit.size_bytes:
            self._tell(sender)
        elif self._frames > limit.all_frames:
            self._tell(max(self._senders, key=lambda one: self._senders[one].frames))
        elif self._bytes > limit.all_bytes:
            self._tell(max(self._senders, key=lambda one: self._senders[one].size_bytes))

    def take(self) -> tuple[Frames, int]:
        """The next message and the descriptor by which it came. Call it only where one waits."""
        sender = self._turns.popleft()
        waiting = self._senders[sender]
        frames, source = waiting.messages.popleft()
        if waiting.messages:
            self._turns.append(sender)
        else:
            del self._senders[sender]
        if waiting.uncounted:
            waiting.uncounted -= 1
        else:
            self._count(waiting, frames, -1)
        return frames, source

    def drop(self, source: int) -> bytes | None:
        """Keep nothing more of the sender of whom most waits that came by a descriptor last; returns it, if any."""
        senders = [one for one, waiting in self._senders.items() if waiting.messages[-1][1] == source]
        if not senders:
            return None
        sender = max(senders, key=lambda one: self._senders[one].frames)
        self._stop(sender)
        return sender

    def forgive(self) -> None:
        """Keep again what comes of those that were told: what they had sent was read."""
        self._stopped.clear()

    def clear(self) -> None:
        """Nothing waits any more."""
        self._turns.clear()
        self._senders.clear()
        self._frames = self._bytes = 0

    def _count(self, waiting: _Sender, frames: Frames, sign: int) -> None:
        num_frames = sign * (len(frames) - self._has_senders)
        size_bytes = sign * sum(map(len, frames[self._has_senders :]))
        waiting.frames += num_frames
        waiting.size_bytes += size_bytes
        self._frames += num_frames
        self._bytes += size_bytes

    def _tell(self, sender: bytes) -> None:
        waiting = self._senders[sender]
        excess = Excess(sender, waiting.messages[-1][1], waiting.size_bytes)
        self._stop(sender)
        self._on_excess(excess)

    def _stop(self, sender: bytes) -> None:
        waiting = self._senders[sender]
        self._frames -= waiting.frames
        self._bytes -= waiting.size_bytes
        waiting.frames = waiting.size_bytes = 0
        waiting.uncounted = len(waiting.messages)
        self._stopped.add(sender)


class _Sender:
    """What waits of one. uncounted: so many of the oldest, which waited when it was stopped, are in no count."""

    __slots__ = ("frames", "messages", "size_bytes", "uncounted")

    def __init__(self) -> None:
        self.messages: deque[tuple[Frames, int]] = deque()
        self.frames = self.size_bytes = self.uncounted = 0
