"""The forward pass of a step. Its microbatches take turns: while one waits for partials of peers, another computes."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence

from torch import Tensor

from distkv.engine.attention.direct import exchange_of
from distkv.engine.attention.dist_attention import dist_attention
from distkv.engine.device.pool import KvPool
from distkv.engine.model.decoder import Model
from distkv.engine.step.batch import Batch
from distkv.engine.step.graphs.decode import DecodeGraphs
from distkv.engine.step.graphs.exchanges import ExchangeGraphs
from distkv.engine.step.graphs.pieces import EagerPieces, Pieces
from distkv.engine.step.graphs.piecewise import PiecewiseGraphs
from distkv.wire.messages.counters import Counters


class Forward:
    """One model over one pool. Used by one thread.

    A batch without peers is one call where the backend can compute all layers in one. On asynchronous devices, whose
    host must not keep them waiting, the pieces between attentions are captured.
    """

    def __init__(self, model: Model, pool: KvPool, decodes: DecodeGraphs | None = None) -> None:
        """decodes: of the same model and pool, where there are graphs of whole steps."""
        self._model, self._pool = model, pool
        self._all_layers = model.forward_over([pool.layer(index) for index in range(model.config.num_layers)])
        config, heads = model.config, model.heads
        layers = [pool.layer(index) for index in range(config.num_layers)]
        self._exchanges = model.device.backend.exchanges(
            layers, config.windows, config.scale, heads.queries, model.dtype
        )
        self._graphs = PiecewiseGraphs(model, pool) if model.device.is_async else None
        self._exchange_graphs = None if decodes is None else ExchangeGraphs(model, pool, decodes)

    def __call__(self, batches: Sequence[Batch], counters: Counters) -> list[Tensor]:
        """Last hidden states of the wanted rows of each, [M, hidden]. Counts model_s and attend_wait_s."""
        started_s = time.perf_counter()
        if self._all_layers is not None and len(batches) == 1 and not (batches[0].links or batches[0].fetched):
            (batch,) = batches
            hidden = [self._all_layers(batch.tokens, batch.metadata, batch.slots, batch.offsets, batch.wanted)]
        else:
            if len(batches) == 1 and self._exchanges is not None and not self._model.device.is_async:
                heads, num_layers = self._model.heads, self._model.config.num_layers
                (batch,) = batches
                batch.exchange = exchange_of(
                    batch, self._exchanges, num_layers, heads.queries, heads.dim, self._model.dtype
                )
            hidden = self._by_turns(batches)
            _finish(batches, counters)
        counters.model_s += time.perf_counter() - started_s
        counters.attend_wait_s += sum(batch.waited_s for batch in batches)
        return hidden

    @property
    def graphs(self) -> str:
        """What became of captured graphs, in words: for benchmarks."""
        if self._graphs is None:
            return "none on this device"
        exchanges = self._exchange_graphs.problem if self._exchange_graphs else None
        problem = self._graphs.problem or exchanges
        return f"given up: {problem}" if problem else "captured"

    def capture(self) -> None:
        """All graphs of decode steps with keys at creditors, where there are any."""
        if self._exchange_graphs is not None:
            self._exchange_graphs.capture_all()

    def _by_turns(self, batches: Sequence[Batch]) -> list[Tensor]:
        """Layer by layer, the first batch first: a later one may read what an earlier one stores."""
        exchange = self._exchange_graphs.pieces(batches[0]) if self._exchange_graphs and len(batches) == 1 else None
        passes = [self._layers(batch, exchange or self._pieces(batch, index)) for index, batch in enumerate(batches)]
        hidden: list[Tensor] = []
        while len(hidden) < len(passes):
            for one in passes:
                try:
                    next(one)
                except StopIteration as done:
                    hidden.append(done.value)
        return hidden

    def _layers(self, batch: Batch, pieces: Pieces) -> Generator[None, None, Tensor]:
        """Pauses in each layer when its queries are under way."""
        device = self._model.device
        last = self._model.config.num_layers - 1
        pieces.begin()
        for layer in range(last):
            pieces.advance(layer, (yield from dist_attention(layer, pieces, batch, device)))
        return pieces.end((yield from dist_attention(last, pieces, batch, device)))

    def _pieces(self, batch: Batch, microbatch: int) -> Pieces:
        if self._graphs is None:
            return EagerPieces(self._model, self._pool, batch)
        return self._graphs.pieces(batch, microbatch)


def _finish(batches: Sequence[Batch], counters: Counters) -> None:
    """All keys at creditors were read: sequences whose keys were not there any more are lost."""
    for batch in batches:
        for link in batch.links:
            link.finish()
        for keys in batch.fetched:
            keys.finish(counters)
            batch.waited_s += keys.waited_s
