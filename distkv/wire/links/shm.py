"""The tensor link between workers of one host: frames over a socket, reads straight from the peer's mapped pool."""

from __future__ import annotations

from collections.abc import Sequence

from distkv.wire.links.frames import FrameSocket
from distkv.wire.links.pool_memory import PeerPool, copy_slots
from distkv.wire.links.tcp import StreamLink


class ShmLink(StreamLink):
    """A TensorLink that reads without the peer's CPU, also while the peer is stopped. Owns the mapping."""

    def __init__(self, frames: FrameSocket, pool: PeerPool) -> None:
        super().__init__(frames, pool.slot_bytes, pool.num_slots, transport="shm")
        self._pool = pool

    def read(self, slots: Sequence[int], into: Sequence[memoryview], timeout_s: float) -> None:
        self._check_read(slots, into)
        self._frames.check_alive()
        try:
            copy_slots(self._pool, slots, into)
        except ValueError:
            # Ended by another thread meanwhile, which says so; anything else is ours.
            self._frames.check_alive()
            raise
        # Memory outlives its process: only an open connection says that the owner did not die before or meanwhile.
        self._frames.check_alive()

    def close(self) -> None:
        super().close()
        self._pool.close()

    def abort(self) -> None:
        super().abort()
        self._pool.close()
