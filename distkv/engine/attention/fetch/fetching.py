"""Which chunks of a microbatch fetch a creditor's KV, and the memory that it is fetched into."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from distkv.engine.attention.fetch.costs import OwnAttention, Work
from distkv.engine.attention.fetch.keys import FetchedKeys, FetchPlan, MappedKeys, StreamedKeys
from distkv.engine.attention.fetch.link import FetchLink
from distkv.engine.device.device import Device
from distkv.engine.device.pool import KvPool
from distkv.engine.model.config import ModelConfig
from distkv.errors import LinkError, WireError
from distkv.wire.messages.data import SpanPart

FETCH_BYTES = 64 * 2**20
PROBE_BYTES = 256 * 2**10
"""What is read at most to learn how fast a link is."""
BUFFERS = 2
"""One is read into while the step attends to the other."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A chunk and what it attends to at one creditor. index: of the chunk, for whoever asks. own_blocks: see Work."""

    index: int
    rows: int
    parts: tuple[SpanPart, ...]
    own_blocks: int = 0

    @property
    def work(self) -> Work:
        return Work(self.rows, sum(part.num_blocks for part in self.parts), self.own_blocks)


@dataclass(frozen=True, slots=True)
class Found:
    """Chunks that fetch, by their `Wanted.index`, and int64 slots of all their parts, in order. buffers: none where the
    pool is mapped. spent_s: what finding them took."""

    link: FetchLink
    indices: frozenset[int]
    slots: NDArray[np.int64]
    buffers: tuple[Tensor, ...]
    spent_s: float


class Fetching:
    """Of one worker; used by its step thread. own: what attention over own keys takes.

    A fetch that cannot begin costs nothing but the attempt: the chunk ships its queries instead. Scratch memory is
    taken at the first fetch over a link, once; each of the fetches of a step gets half of what is left.
    """

    def __init__(
        self,
        pool: KvPool,
        config: ModelConfig,
        device: Device,
        way: Literal["auto", "fetch"] = "auto",
        scratch_bytes: int = FETCH_BYTES,
    ) -> None:
        self._pool, self._config, self._device, self._way = pool, config, device, way
        self._layer_bytes = pool.slot_bytes // config.num_layers
        self._scratch_blocks = scratch_bytes // self._layer_bytes
        self._scratch: Tensor | None = None
        self._used_blocks = 0
        self.own = OwnAttention()

    def begin_step(self) -> None:
        """All scratch memory is free: the fetches of the step before are finished."""
        self._used_blocks = 0

    def find(self, link: FetchLink | None, chunks: Sequence[Wanted]) -> Found | None:
        """Those of the chunks that fetch from a creditor, and where it keeps their keys. None: all ship queries.

        link: None if there is none yet.
        """
        if link is None or link.broken:
            return None
        is_mapped = self._creditor_pool(link) is not None
        if not is_mapped and self._scratch_blocks < 2 * BUFFERS:
            return None
        if not is_mapped and self._way == "auto" and link.costs.read_s_per_byte is None:
            self._probe(link, chunks[0].parts)
        fetching = [chunk for chunk in chunks if self._fetches(link, chunk, is_mapped)]
        if not fetching:
            return None
        buffers = () if is_mapped else self._take_buffers()
        if not is_mapped and not buffers:
            return None
        started_s = time.monotonic()
        slots = link.slots([part for chunk in fetching for part in chunk.parts], self._num_slots(link))
        if slots is None:
            return None
        spent_s = time.monotonic() - started_s
        return Found(link, frozenset(chunk.index for chunk in fetching), slots, buffers, spent_s)

    def attended(self, pairs: float, seconds: float) -> None:
        """Attention over own keys took so long in all layers, for so many pairs of a chunk's row and an rBlock; 0 where
        that was not measured."""
        if pairs and seconds and not self._device.is_async:  # calls that return before they are done say nothing
            self.own.took(pairs, seconds / self._config.num_layers)

    def keys(self, found: Found, plan: FetchPlan) -> FetchedKeys:
        """What attends to them; reading begins."""
        if found.buffers:
            return StreamedKeys(found.link, plan, self._config, self._device, self._pool, found.buffers)
        pool = self._creditor_pool(found.link)
        assert pool is not None
        return MappedKeys(found.link, plan, self._config, self._device, pool)

    def _fetches(self, link: FetchLink, chunk: Wanted, is_mapped: bool) -> bool:
        if self._way == "fetch":
            return True
        work = chunk.work
        read_bytes = 0 if is_mapped else work.blocks * self._layer_bytes
        return link.costs.choose(work, read_bytes, self.own.expected_s(work)) == "fetch"

    def _creditor_pool(self, link: FetchLink) -> KvPool | None:
        """The creditor's pool, where the own kernels can read it."""
        if link.pool is None and not self._device.is_async and (memory := link.memory()) is not None:
            link.pool = self._pool.like_over(memory)
        return link.pool

    def _num_slots(self, link: FetchLink) -> int | None:
        pool = self._creditor_pool(link)
        return None if pool is None else pool.num_slots

    def _take_buffers(self) -> tuple[Tensor, ...]:
        """Half of the scratch memory that is left, in buffers; none if there is no room for a block in each."""
        blocks = (self._scratch_blocks - self._used_blocks) // 2 // BUFFERS
        if not blocks:
            return ()
        if self._scratch is None:
            self._scratch = self._device.host(self._scratch_blocks * self._layer_bytes)
        ends = [(self._used_blocks + number * blocks) * self._layer_bytes for number in range(BUFFERS + 1)]
        self._used_blocks += BUFFERS * blocks
        return tuple(self._scratch[first:end] for first, end in pairwise(ends))

    def _probe(self, link: FetchLink, parts: Sequence[SpanPart]) -> None:
        """Learn how fast a link is that nothing was read from yet."""
        slots = link.slots(parts)
        blocks = max(1, PROBE_BYTES // self._layer_bytes)
        if slots is None or not len(slots):
            return
        try:
            link.probe(slots[:blocks].tolist(), (0, self._layer_bytes))
        except (LinkError, WireError) as error:
            link.fail(error)
