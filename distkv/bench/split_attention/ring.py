"""RingAttention: each process attends with its queries to its own keys and values, and to those of the other processes,
which come to it one process's after another, in the order of the ring, while it attends to what is here.

A decode step has one query, so one process attends to everything. Keys are read from where they lie and not from the
process before in the ring, which has a copy of them by then: the link that they come by is as busy, and no process
copies for another. They are read ahead also of the next layer, and attended to piece by piece, as soon as one is here.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from distkv.bench.split_attention.split import Share, Split, metadata_over
from distkv.bench.split_attention.ways import empty_outputs
from distkv.engine.attention.bodies import body_of
from distkv.kernels import Backend
from distkv.wire.links import TensorLink

PIECE_BLOCKS = 32
BUFFERS = 4
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Piece:
    """Some neighbouring rBlocks of another process, in one layer. slots: in its pool. buffer: where they are."""

    slots: range
    buffer: Tensor


class Ring:
    """A Way. links: to the other processes, by their number."""

    def __init__(
        self, split: Split, process: int, share: Share, backend: Backend, links: Mapping[int, TensorLink]
    ) -> None:
        self._split, self._share, self._backend, self._links = split, share, backend, links
        self._sources = [(process - turn) % split.processes for turn in range(1, split.processes)]
        self._rows = split.rows_of(process)
        self._queries = split.queries()[:, self._rows.start : self._rows.stop].contiguous()
        self._pieces = pieces_of(len(split.blocks_of(process)))
        self._own = [share.metadata_of(piece, len(self._rows)) for piece in self._pieces]
        sizes = {len(piece) for piece in self._pieces}
        self._there = {size: metadata_over(split, range(size), range(size), len(self._rows)) for size in sizes}
        self._buffers = [torch.empty(max(sizes) * split.block_bytes, dtype=torch.uint8) for _ in range(BUFFERS)]
        self.outputs = empty_outputs(split.layers, len(self._rows), split.heads, split.dim)
        self.sent_bytes = 0

    def step(self, layers: int) -> float:
        """See Way."""
        self.sent_bytes = 0
        if not self._rows:
            return 0.0
        started_s = time.perf_counter()
        reader = Reader(self._links, self._buffers, self._split.block_bytes)
        reader.start([
            (process, layer, piece) for layer in range(layers) for process in self._sources for piece in self._pieces
        ])  # fmt: skip
        try:
            for layer in range(layers):
                self.outputs[layer] = self._layer(layer, reader)
        finally:
            reader.end()
        self.sent_bytes = reader.read_bytes
        return time.perf_counter() - started_s

    def _layer(self, layer: int, reader: Reader) -> Tensor:
        """What is here is attended to before what is the process's own, so that buffers are free soon."""
        own = list(zip(self._own, reversed(range(len(self._own))), strict=True))
        coming = len(self._sources) * len(self._pieces)
        q, found = self._queries[layer], None
        kv, scale = self._share.pool.layer(layer), self._share.config.scale
        while own or coming:
            piece = reader.next(wait=not own) if coming else None
            if piece is None:
                partial = self._backend.attend(q, kv, own.pop()[0], scale)
            else:
                there = self._share.pool.layer_over(piece.buffer[: len(piece.slots) * self._split.block_bytes])
                partial = self._backend.attend(q, there, self._there[len(piece.slots)], scale)
                reader.release(piece)
                coming -= 1
            found = partial if found is None else self._backend.merge([found, partial])
        assert found is not None
        return found[0]


class Reader:
    """Reads pieces in order in a thread of its own, each into the next buffer that is free. read_bytes: so far."""

    def __init__(self, links: Mapping[int, TensorLink], buffers: Sequence[Tensor], block_bytes: int) -> None:
        self.read_bytes = 0
        self._links, self._block_bytes = links, block_bytes
        self._filled: queue.SimpleQueue[Piece | Exception] = queue.SimpleQueue()
        self._empty: queue.SimpleQueue[Tensor | None] = queue.SimpleQueue()
        for buffer in buffers:
            self._empty.put(buffer)

    def start(self, wanted: Sequence[tuple[int, int, range]]) -> None:
        """wanted: of which process, in which layer, which slots."""
        self._thread = threading.Thread(target=self._run, args=(wanted,), name="ring", daemon=True)
        self._thread.start()

    def next(self, *, wait: bool) -> Piece | None:
        """The next piece; None where it is not here and is not to be waited for. Raises what its reading raised."""
        try:
            found = self._filled.get(wait, PATIENCE_S)
        except queue.Empty:
            if wait:
                raise
            return None
        if isinstance(found, Exception):
            raise found
        return found

    def release(self, piece: Piece) -> None:
        """Its buffer is read into again."""
        self._empty.put(piece.buffer)

    def end(self) -> None:
        """Nothing more is read."""
        self._empty.put(None)
        self._thread.join()

    def _run(self, wanted: Sequence[tuple[int, int, range]]) -> None:
        # Not only on the core that attends: what copies would take from it, a network card or a copy engine does.
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        for process, layer, slots in wanted:
            buffer = self._empty.get()
            if buffer is None:
                return
            size = len(slots) * self._block_bytes
            try:
                part = layer * self._block_bytes, self._block_bytes
                self._links[process].read(slots, [body_of(buffer[:size])], PATIENCE_S, part)
            except Exception as error:  # whoever waits for the piece raises it
                self._filled.put(error)
                return
            self.read_bytes += size
            self._filled.put(Piece(slots, buffer))


def pieces_of(blocks: int) -> list[range]:
    """As many rBlocks in pieces of at most PIECE_BLOCKS."""
    return [range(first, min(first + PIECE_BLOCKS, blocks)) for first in range(0, blocks, PIECE_BLOCKS)]
