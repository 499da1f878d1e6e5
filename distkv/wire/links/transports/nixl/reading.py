"""The end that reads: an agent for each link, so that ending it ends whatever of its reads is still under way.

A transfer that NIXL has cancelled may write on: only when its agent is gone does nothing of it go on. An agent takes
15 ms and 1.3 MB, and moves only within the calls of whoever waits for a read.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator

import numpy as np

from distkv.wire.links.memory.pool_memory import PoolRegion
from distkv.wire.links.memory.runs import Runs
from distkv.wire.links.transports.nixl.access import NixlAccess
from distkv.wire.links.transports.nixl.agent import Agent, Rows
from distkv.wire.links.transports.nixl.bindings import NixlError

PIECE_BYTES = 16 * 2**20
"""Of one transfer: within a host all of it is copied in one call, during which the link cannot be ended."""
PIECE_RUNS = 4096
AHEAD = 2
"""Transfers of one read under way at once."""
EAGER_S = 200e-6
PAUSE_S = 100e-6
"""A read is looked at without a pause at first, then now and then: what carries it needs a processor, too."""


_HOST = PoolRegion(address=0, num_bytes=0)


class Reading:
    """One read: what of it is under way, what is to follow, and the memory that it was registered for. place: memory of
    the kind where it arrives."""

    def __init__(self, pieces: Iterator[Runs], borrowed: list[PoolRegion], place: PoolRegion) -> None:
        self.pieces, self.borrowed, self.place = pieces, borrowed, place
        self.under_way: deque[int] = deque()
        self.is_complete = False


class Reader:
    """See one_sided.link.Reader."""

    def __init__(self, access: NixlAccess, device: str, own: PoolRegion | None) -> None:
        """Begins to connect. own: memory that reads go to again and again. Raises NixlError."""
        self._access, self._own = access, own
        self._lock = threading.Lock()
        self._readings: list[Reading] = []
        self._agent: Agent | None = Agent(device, has_thread=False)
        if own is not None:
            self._agent.register(own)
        self._peer = self._agent.connect(access.metadata)

    def start(self, runs: Runs) -> Reading:
        """See Reader. Raises NixlError."""
        with self._working() as agent:
            borrowed = _outside(self._own, runs)
            for region in borrowed:
                agent.register(region)
            # What is borrowed is the host's. Nothing arrives in both.
            reading = Reading(_pieces(runs), borrowed, self._own if self._own and not borrowed else _HOST)
            self._readings.append(reading)
            self._move_on(agent, reading)
            return reading

    def progress(self, reading: Reading) -> bool:
        """See Reader; moves only this one on. Raises NixlError."""
        moved = False
        with self._working() as agent:
            while reading.under_way and agent.is_done(reading.under_way[0]):
                agent.release(reading.under_way.popleft())
                self._move_on(agent, reading)
                moved = True
        return moved

    def rest(self, socket: int, waited_s: float, at_most_s: float) -> None:
        """See Reader; a pause too short to be woken from."""
        if waited_s > EAGER_S:
            time.sleep(min(at_most_s, PAUSE_S))

    def close(self) -> None:
        """See Reader."""
        with self._lock:
            agent, self._agent = self._agent, None
            if agent is None:
                return
            for reading in self._readings:
                for transfer in reading.under_way:
                    with contextlib.suppress(NixlError):
                        agent.release(transfer)
            with contextlib.suppress(NixlError):
                agent.disconnect(self._peer)
            self._readings.clear()
            agent.close()

    @contextlib.contextmanager
    def _working(self) -> Iterator[Agent]:
        with self._lock:
            if self._agent is None:
                raise NixlError("the reader is closed")
            yield self._agent

    def _move_on(self, agent: Agent, reading: Reading) -> None:
        """With the lock held: start what may follow, and note when nothing does."""
        while len(reading.under_way) < AHEAD and (piece := next(reading.pieces, None)) is not None:
            remote = self._access.address + piece.remote
            memory, device = self._access.memory, self._access.device
            here = reading.place
            rows = _rows(piece.local, piece.sizes, here.device), _rows(remote, piece.sizes, device)
            reading.under_way.append(agent.read(rows[0], here.memory, rows[1], memory, self._peer))
        if not reading.under_way:
            self._readings.remove(reading)
            for region in reading.borrowed:
                agent.deregister(region)
            reading.is_complete = True


def _pieces(runs: Runs) -> Iterator[Runs]:
    for piece in runs.pieces(PIECE_BYTES):
        for first in range(0, len(piece), PIECE_RUNS):
            part = slice(first, first + PIECE_RUNS)
            yield Runs(piece.remote[part], piece.local[part], piece.sizes[part], piece.memory)


def _rows(addresses: np.ndarray, sizes: np.ndarray, device: int) -> Rows:
    rows = np.empty((len(sizes), 3), dtype=np.uint64)
    rows[:, 0], rows[:, 1], rows[:, 2] = addresses, sizes, device
    return rows


def _outside(own: PoolRegion | None, runs: Runs) -> list[PoolRegion]:
    """Where runs arrive that is not in `own`, with what lies side by side in one."""
    starts, ends = runs.local, runs.local + runs.sizes
    if own is not None:
        is_outside = (starts < own.address) | (ends > own.address + own.num_bytes)
        starts, ends = starts[is_outside], ends[is_outside]
    if not len(starts):
        return []
    order = np.argsort(starts)
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    first = np.flatnonzero(np.append(True, starts[1:] > ends[:-1]))
    last = np.append(first[1:], len(starts)) - 1
    return [
        PoolRegion(address=address, num_bytes=end - address)
        for address, end in zip(starts[first].tolist(), ends[last].tolist(), strict=True)
    ]
