"""Blocks between a stream socket and where they lie: one native call, or a vectored call of Python's for each 1,024 of
them where there is no library."""

from __future__ import annotations

import ctypes
import os
from array import array
from functools import cache

import numpy as np

from distkv.wire.links.memory.mapped_copy import can_check
from distkv.wire.links.memory.runs import Places
from distkv.wire.links.memory.slot_views import SlotViews
from distkv.wire.links.native import native


class _Arrived(ctypes.Structure):
    """As in native/stream_blocks.cpp."""

    _fields_ = [("received", ctypes.c_int64), ("checked", ctypes.c_int64)]


class ArrivingBlocks:
    """Blocks of one frame on their way to their places. checksums: xxh3 of each once all are here, empty unless asked
    for."""

    def __init__(self, places: Places, which: slice, block_bytes: int, *, checked: bool) -> None:
        """which: of the places. checked: only where `can_check_arriving`."""
        self._memory = places.memory
        self._addresses, self._block_bytes = places.addresses[which], block_bytes
        self.num_bytes = len(self._addresses) * block_bytes
        self._arrived = _Arrived()
        self._found = array("Q", bytes(8 * len(self._addresses) if checked else 0))

    @property
    def received(self) -> int:
        """Bytes that are here."""
        return int(self._arrived.received)

    @property
    def left_bytes(self) -> int:
        """Those that are not."""
        return self.num_bytes - self.received

    @property
    def checksums(self) -> array[int]:
        return self._found

    def take(self, came: memoryview) -> int:
        """Bytes that were received before; returns how many of them belong here."""
        size = min(len(came), self.left_bytes)
        array_of = np.frombuffer(came, dtype=np.uint8)
        source, taken = array_of.__array_interface__["data"][0], 0
        while taken < size:
            block, offset = divmod(self.received, self._block_bytes)
            count = min(size - taken, self._block_bytes - offset)
            ctypes.memmove(self._addresses[block] + offset, source + taken, count)
            taken += count
            self._arrived.received += count
        return size

    def receive(self, fd: int, deadline: float) -> bool:
        """All that is left, by the native function; False when the peer has ended. The socket's own timeout for
        receiving is another one afterwards. Raises OSError, BlockingIOError at the deadline."""
        function = native("receive_blocks")
        assert function is not None
        places, found = (one.buffer_info()[0] for one in (self._addresses, self._found))
        count, arrived = len(self._addresses), ctypes.byref(self._arrived)
        result = function(fd, places, found if self._found else None, count, self._block_bytes, deadline, arrived)
        if result > 0:
            raise OSError(result, os.strerror(result))
        return bool(result == 0)

    def views(self) -> list[memoryview]:
        """What is left to fill, for who receives without the native function."""
        first, offset = divmod(self.received, self._block_bytes)
        size = self._block_bytes
        views = [memoryview((ctypes.c_char * size).from_address(one)).cast("B") for one in self._addresses[first:]]
        if offset:
            views[0] = views[0][offset:]
        return views

    def note(self, count: int) -> None:
        """So many bytes more are here."""
        self._arrived.received += count


def send_blocks(fd: int, head: bytes, blocks: SlotViews, latest_s: float) -> bool:
    """Send a frame by the native function; False, with nothing sent, where there is none. Raises OSError,
    BlockingIOError when the peer took nothing for as long as the socket's own timeout, or not all by `latest_s` on the
    monotonic clock."""
    function = native("send_blocks")
    if function is None:
        return False
    base = np.frombuffer(blocks.memory, dtype=np.uint8)
    slots = array("q", blocks.slots)
    addresses = base.__array_interface__["data"][0], slots.buffer_info()[0]
    result = function(fd, head, len(head), *addresses, len(slots), blocks.slot_bytes, latest_s)
    if result:
        raise OSError(result, os.strerror(result))
    return True


@cache
def can_check_arriving(block_bytes: int) -> bool:
    """Whether checksums of such blocks are computed as they come."""
    return native("receive_blocks") is not None and can_check(block_bytes)
