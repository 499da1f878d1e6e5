"""Who sends far more messages than are read, by what the kernel and the reader count.

ZeroMQ's thread reads many times as fast as Python, and where both share a core, or other work is done, Python reads
little. So what waits in ZeroMQ may take much memory before a reader finds out how much it is.
"""

from __future__ import annotations

from typing import NamedTuple

from distkv.wire.sockets.flood_guard import QUOTA_MESSAGES
from distkv.wire.sockets.waiting_messages import PAUSE_S

LEAST_BEHIND_BYTES = 2**20
"""Where less waits, nobody is behind."""
MOST_UNREAD_FRAMES = PAUSE_S * QUOTA_MESSAGES
"""As many as a client may send within its quota while this process stands still for PAUSE_S."""


class _Mark(NamedTuple):
    received: int
    read_bytes: int
    read_frames: int


class ReadingPace:
    """Tells of each connection whether MOST_UNREAD_FRAMES are left of it although QUOTA_MESSAGES were read since it has
    been behind, twice what the queue of a client holds. What is left is taken to be frames as long as these."""

    def __init__(self) -> None:
        self._behind: dict[int, _Mark] = {}

    def is_too_far_behind(self, descriptor: int, received: int, read_bytes: int, read_frames: int) -> bool:
        """received, read_bytes, read_frames: of this connection since it began, and only ever asked with more."""
        unread_bytes = received - read_bytes
        mark = self._behind.get(descriptor)
        if unread_bytes < LEAST_BEHIND_BYTES:
            self._behind.pop(descriptor, None)
            return False
        now = _Mark(received, read_bytes, read_frames)
        if mark is None or received < mark.received or read_bytes < mark.read_bytes:  # or of another connection
            self._behind[descriptor] = now
            return False
        frames = read_frames - mark.read_frames
        if frames < QUOTA_MESSAGES:
            return False
        self._behind[descriptor] = now
        return unread_bytes > MOST_UNREAD_FRAMES * (read_bytes - mark.read_bytes) / frames
