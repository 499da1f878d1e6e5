"""Reads from a pool that is mapped here: the thread that polls or waits copies, and looks at the peer now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

from distkv.errors import LinkTimeout
from distkv.wire.links.mapped_copy import copy_checked, copy_runs
from distkv.wire.links.runs import Runs

PIECE_BYTES = 16 * 2**20
"""As much is copied between two looks at the deadline and the connection."""


class MappedRead:
    """See BlockRead.

    check_alive: raises LinkClosed when the peer, or this side, has ended the link. give_up: a read took too long, so
    that the link is dead.
    """

    _piece_bytes = PIECE_BYTES

    def __init__(
        self, pool: memoryview, runs: Runs, check_alive: Callable[[], None], give_up: Callable[[float], LinkTimeout]
    ) -> None:
        self._pool, self._check_alive, self._give_up = pool, check_alive, give_up
        self._pieces = list(runs.pieces(self._piece_bytes)) if runs.num_bytes > self._piece_bytes else [runs]
        self._pieces.reverse()

    def poll(self) -> bool:
        if self._pieces:
            try:
                self._copy(self._pieces[-1])
            except ValueError:
                # Ended by another thread meanwhile, which says so; anything else is ours.
                self._check_alive()
                raise
            # Memory outlives its process: only an open connection says that the owner did not die before or meanwhile.
            self._check_alive()
            self._pieces.pop()
        return not self._pieces

    def wait(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.poll():
            if time.monotonic() > deadline:
                self._pieces.clear()
                raise self._give_up(timeout_s)

    def _copy(self, piece: Runs) -> None:
        copy_runs(self._pool, piece)


class CheckedMappedRead(MappedRead):
    """See CheckedRead."""

    def __init__(
        self,
        pool: memoryview,
        runs: Runs,
        check_alive: Callable[[], None],
        give_up: Callable[[float], LinkTimeout],
        block_bytes: int,
    ) -> None:
        """Of blocks that `can_check`."""
        self.checksums: list[int] = []
        self._block_bytes = block_bytes
        self._piece_bytes = max(1, PIECE_BYTES // block_bytes) * block_bytes
        super().__init__(pool, runs, check_alive, give_up)

    def _copy(self, piece: Runs) -> None:
        self.checksums += copy_checked(self._pool, piece, self._block_bytes)
