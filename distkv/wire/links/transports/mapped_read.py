"""Reads from a pool that is mapped here: the thread that polls or waits copies, and looks at the peer now and then."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from functools import partial

from distkv.errors import LinkTimeout
from distkv.wire.links.memory.addressed import Addressed
from distkv.wire.links.memory.mapped_copy import copy_blocks, copy_checked, copy_runs
from distkv.wire.links.memory.runs import Places, Runs
from distkv.wire.links.streams.frames import FrameSocket

PIECE_BYTES = 16 * 2**20
"""As much is copied between two looks at the deadline and the connection."""

Copy = Callable[[], None]
"""A piece. Raises ValueError, with nothing copied, when another thread has ended the link already."""


class MappedRead:
    """See BlockRead. copies: its pieces. frames: of the link, which a read that takes too long ends."""

    def __init__(self, copies: Sequence[Copy], frames: FrameSocket) -> None:
        self._copies = list(reversed(copies))
        self._frames = frames

    def poll(self) -> bool:
        if self._copies:
            try:
                self._copies[-1]()
            except ValueError:
                # Ended by another thread meanwhile, which says so; anything else is ours.
                self._frames.check_alive()
                raise
            # Memory outlives its process: only an open connection says that the owner did not die before or meanwhile.
            self._frames.check_alive()
            self._copies.pop()
        return not self._copies

    def wait(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.poll():
            if time.monotonic() > deadline:
                self._copies.clear()
                # No variable has the error that is raised: all frames that it passes would stay, with the destination,
                # until garbage is looked for.
                self._frames.kill(str(LinkTimeout(self._frames.peer, timeout_s)))
                raise LinkTimeout(self._frames.peer, timeout_s)


class CheckedMappedRead(MappedRead):
    """See CheckedRead."""

    def __init__(
        self, pool: Addressed, slots: Sequence[int], places: Places, block_bytes: int, frames: FrameSocket
    ) -> None:
        """Of blocks that `can_check`."""
        self.checksums = array("Q")
        pieces = _pieces(len(slots), block_bytes)
        # Pieces know their destination and not this read: nobody waits for a collection of garbage to have it back.
        copies = [partial(_copy_checked, pool, slots[one], places, one, block_bytes, self.checksums) for one in pieces]
        super().__init__(copies, frames)


def _copy_checked(
    pool: Addressed, slots: Sequence[int], places: Places, piece: slice, block_bytes: int, found: array[int]
) -> None:
    found += copy_checked(pool, slots, places.addresses[piece], block_bytes)


def copies_of_blocks(pool: Addressed, slots: Sequence[int], places: Places, block_bytes: int) -> list[Copy]:
    """The pieces of a read of these whole slots of `pool`."""
    return [partial(_copy, pool, slots[one], places, one, block_bytes) for one in _pieces(len(slots), block_bytes)]


def _copy(pool: Addressed, slots: Sequence[int], places: Places, piece: slice, block_bytes: int) -> None:
    copy_blocks(pool, slots, places.addresses[piece], block_bytes)


def _pieces(num_blocks: int, block_bytes: int) -> list[slice]:
    most = max(1, PIECE_BYTES // block_bytes)
    return [slice(first, first + most) for first in range(0, num_blocks, most)]


def copies_of_runs(pool: Addressed, runs: Runs) -> list[Copy]:
    """The pieces of a read of these runs of `pool`."""
    pieces = runs.pieces(PIECE_BYTES) if runs.num_bytes > PIECE_BYTES else (runs,)
    return [partial(copy_runs, pool, piece) for piece in pieces]
