"""Attention over a creditor's keys in this process: where they lie if its pool is mapped here, else piece by piece in
scratch memory. The result is one more partial for each entry, as if the creditor had computed it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distkv.engine.attention.fetch.costs import Work
from distkv.engine.attention.fetch.link import FetchLink
from distkv.engine.attention.fetch.reader import Piece, PieceReader
from distkv.engine.attention.merging import Rows
from distkv.engine.device.device import Device
from distkv.engine.device.pool import KvPool
from distkv.engine.model.config import ModelConfig
from distkv.errors import LinkError, WireError
from distkv.kernels import AttentionMetadata, BlockTable, Partial, empty_partial
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.data import AttendEntry, AttendPlan, SpanPart


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """What the chunks of a microbatch attend to at one creditor, without asking it.

    plan: as it would be sent. slots: int64, of all its entries' rBlocks, entry by entry. rows: of the microbatch, those
    of the plan. positions: int64 [R] of these, on the host and on the device. lost: per entry, see CreditorLink.begin.
    spent_s: what finding the slots took.
    """

    plan: AttendPlan
    slots: NDArray[np.int64]
    rows: Rows
    positions: Tensor
    device_positions: Tensor
    lost: Sequence[set[str]]
    spent_s: float = 0.0

    @property
    def num_blocks(self) -> int:
        """rBlocks of all entries."""
        return len(self.slots)

    @property
    def partial_rows(self) -> int:
        """Rows of all entries."""
        return sum(entry.num_rows for entry in self.plan.entries)

    def entries(self) -> Iterator[tuple[AttendEntry, NDArray[np.int64]]]:
        """Each entry with its slots."""
        first = 0
        for entry in self.plan.entries:
            yield entry, self.slots[first : first + entry.num_blocks]
            first += entry.num_blocks


class FetchedKeys(ABC):
    """The keys that chunks of one microbatch have at one creditor, during one step. Used by its thread.

    A failure of the link loses the sequences, and so does what has been overwritten meanwhile: `finish` finds out, and
    nothing counts before. waited_s: how long the step stood still for keys.
    """

    def __init__(self, link: FetchLink, plan: FetchPlan, config: ModelConfig, device: Device) -> None:
        """What `plan.spent_s` says, and what making it takes, counts as what fetching took."""
        self.waited_s = 0.0
        self._link, self._plan, self._config, self._device = link, plan, config, device
        self._seconds, self._layers = plan.spent_s, 0

    @property
    def partial_rows(self) -> int:
        """Rows of the partials of one layer."""
        return self._plan.partial_rows

    def attend(self, layer: int, q: Tensor) -> Partial:
        """The partials of a layer, entry by entry, on the device: as a creditor's. q: of the whole microbatch."""
        started_s = time.monotonic()
        partial: Partial | None = None
        if not self._link.broken and not all(self._plan.lost):
            try:
                partial = self._attend(layer, q[self._plan.rows])
            except (LinkError, WireError) as error:
                self._link.fail(error)
                self._lose(range(len(self._plan.lost)))
        self._seconds += time.monotonic() - started_s
        self._layers += 1
        if partial is None:
            out, lse = self._device.to_device(*empty_partial(self.partial_rows, *q.shape[1:]))
            return out, lse
        return partial

    def finish(self, counters: Counters) -> None:
        """The step has read everything: was it there all the time? Adds to fetched_blocks and fetched_bytes."""
        started_s = time.monotonic()
        fetched_bytes = self._end()
        if all(self._plan.lost):  # by other creditors, or by this one already
            return
        parts = parts_of(self._plan.plan.entries)
        stale = self._link.stale(parts)
        self._lose(stale)
        if stale or not self._layers:
            return
        self._seconds += time.monotonic() - started_s
        work = work_of(self._plan.plan.entries)
        if work is not None:
            self._link.costs.took("fetch", work, self._seconds / self._layers)
        counters.fetched_blocks += self._plan.num_blocks
        counters.fetched_bytes += fetched_bytes

    @abstractmethod
    def _attend(self, layer: int, q: Tensor) -> Partial:
        """As `attend`, with the rows of the plan. Raises LinkError and WireError."""

    @abstractmethod
    def _end(self) -> int:
        """Nothing is read from now on. Returns the bytes that were."""

    def _lose(self, entries: Sequence[int] | set[int] | range) -> None:
        for entry in entries:
            self._plan.lost[entry].add(self._link.creditor_id)


class MappedKeys(FetchedKeys):
    """Keys in a pool that is mapped here: attention reads them where they lie."""

    def __init__(self, link: FetchLink, plan: FetchPlan, config: ModelConfig, device: Device, pool: KvPool) -> None:
        """pool: the creditor's."""
        super().__init__(link, plan, config, device)
        self._pool = pool
        rows = tuple(range(entry.row, entry.row + entry.num_rows) for entry in plan.plan.entries)
        tables = tuple(table_of(entry, slots, pool.block_tokens) for entry, slots in plan.entries())
        self._metadata = AttentionMetadata(rows, tables, plan.device_positions, plan.positions)

    def _attend(self, layer: int, q: Tensor) -> Partial:
        config = self._config
        return self._device.backend.attend(
            q, self._pool.layer(layer), self._metadata, config.scale, config.windows[layer]
        )

    def _end(self) -> int:
        return self._plan.num_blocks * self._pool.slot_bytes


@dataclass(frozen=True, slots=True)
class _PlannedPiece:
    """Some rBlocks of an entry: `blocks` of it from `first` on."""

    entry: int
    first: int
    slots: NDArray[np.int64]


class StreamedKeys(FetchedKeys):
    """Keys that are read over a link: those of a layer in pieces, one while the step attends to the one before."""

    def __init__(
        self,
        link: FetchLink,
        plan: FetchPlan,
        config: ModelConfig,
        device: Device,
        pool: KvPool,
        buffers: Sequence[Tensor],
    ) -> None:
        """pool: the own one, whose rBlocks have the same shape. buffers: see PieceReader."""
        started_s = time.monotonic()
        super().__init__(link, plan, config, device)
        self._pool = pool
        self._layer_bytes = pool.slot_bytes // config.num_layers
        most_blocks = buffers[0].nbytes // self._layer_bytes
        by_window = {window: list(self._pieces(window, most_blocks)) for window in set(config.windows)}
        self._by_layer = [by_window[window] for window in config.windows]
        reads = [
            Piece(piece.slots.tolist(), (layer * self._layer_bytes, self._layer_bytes))
            for layer, pieces in enumerate(self._by_layer)
            for piece in pieces
        ]
        self._reader = PieceReader(link, reads, buffers)
        self._seconds += time.monotonic() - started_s

    def _pieces(self, window: int | None, most_blocks: int) -> Iterator[_PlannedPiece]:
        """What a layer has to read, entry by entry: rBlocks before every window are left out."""
        tokens = self._pool.block_tokens
        for index, (entry, slots) in enumerate(self._plan.entries()):
            hidden = 0
            if window is not None:
                first_seen = int(self._plan.positions[entry.row]) - window + 1
                hidden = min(len(slots), max(0, (first_seen - entry.first_position) // tokens))
            for first in range(hidden, len(slots), most_blocks):
                yield _PlannedPiece(index, first, slots[first : first + most_blocks])

    def _attend(self, layer: int, q: Tensor) -> Partial:
        found: list[Partial | None] = [None] * len(self._plan.plan.entries)
        for piece in self._by_layer[layer]:
            partial = self._attend_piece(layer, q, piece)
            before = found[piece.entry]
            found[piece.entry] = partial if before is None else self._device.backend.merge([before, partial])
        entries = self._plan.plan.entries
        partials = [self._nothing(entry, q) if one is None else one for entry, one in zip(entries, found, strict=True)]
        if len(partials) == 1:
            return partials[0]
        return torch.cat([out for out, _ in partials]), torch.cat([lse for _, lse in partials])

    def _attend_piece(self, layer: int, q: Tensor, piece: _PlannedPiece) -> Partial:
        waits_s = time.monotonic()
        buffer = self._reader.next()
        self.waited_s += time.monotonic() - waits_s
        entry, config, device = self._plan.plan.entries[piece.entry], self._config, self._device
        count, tokens = len(piece.slots), self._pool.block_tokens
        first_position = entry.first_position + piece.first * tokens
        table = BlockTable.from_runs([(0, 0, count)], count * tokens, tokens)
        table = BlockTable(table.slots, table.positions + first_position, first_position + count * tokens, tokens)
        rows = slice(entry.row, entry.row + entry.num_rows)
        (here,) = device.to_device(buffer[: count * self._layer_bytes])
        positions = self._plan.device_positions[rows], self._plan.positions[rows]
        metadata = AttentionMetadata((range(entry.num_rows),), (table,), *positions)
        kv = self._pool.layer_over(here)
        partial = device.backend.attend(q[rows], kv, metadata, config.scale, config.windows[layer])
        device.synchronize()
        self._reader.release(buffer)
        return partial

    def _nothing(self, entry: AttendEntry, q: Tensor) -> Partial:
        out, lse = self._device.to_device(*empty_partial(entry.num_rows, *q.shape[1:]))
        return out, lse

    def _end(self) -> int:
        self._reader.end()
        if not self._device.is_async:
            # Reading takes the step's cores where the step does not wait for it.
            self._seconds += max(0.0, self._reader.cpu_s - self.waited_s)
        if self._reader.read_bytes:
            self._link.costs.read(self._reader.read_bytes, self._reader.read_s)
        return self._reader.read_bytes


def table_of(entry: AttendEntry, slots: NDArray[np.int64], block_tokens: int) -> BlockTable:
    """Where an entry's keys lie."""
    end = entry.first_position + entry.num_blocks * block_tokens
    return BlockTable(slots, np.arange(entry.first_position, end, block_tokens), end, block_tokens)


def parts_of(entries: Sequence[AttendEntry]) -> list[SpanPart]:
    """The parts of spans that entries read."""
    return [SpanPart(span=entry.span, index=entry.index, num_blocks=entry.num_blocks) for entry in entries]


CHUNKS_SHARE = 0.75


def work_of(entries: Sequence[AttendEntry], own_blocks: int = 0) -> Work | None:
    """What a plan's entries are together, if most of it is of chunks: decodes take another time for as much.

    own_blocks: see Work."""
    total = sum(entry.num_rows * entry.num_blocks for entry in entries)
    chunks = sum(entry.num_rows * entry.num_blocks for entry in entries if entry.num_rows > 1)
    if not total or chunks < CHUNKS_SHARE * total:
        return None
    rows = max(entry.num_rows for entry in entries)
    return Work(rows, max(1, round(total / rows)), own_blocks)
