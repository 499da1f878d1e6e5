"""The forward pass of a step. Its microbatches take turns: while one waits for partials of peers, another computes."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence

from torch import Tensor

from distkv.engine.attention.direct import exchange_of, pass_directly
from distkv.engine.attention.dist_attention import dist_attention
from distkv.engine.device.pool import KvPool
from distkv.engine.model.decoder import Model
from distkv.engine.step.batch import Batch
from distkv.engine.step.graphs.exchanges import ExchangeGraphs
from distkv.engine.step.graphs.pieces import EagerPieces, Pieces
from distkv.wire.messages.counters import Counters


class Forward:
    """One model over one pool. Used by one thread.

    A batch without peers is one call where the backend can compute all layers in one. On asynchronous devices, whose
    host must not keep them waiting, what lies between the exchanges of decodes is captured.
    """

    def __init__(self, model: Model, pool: KvPool, exchanges: ExchangeGraphs | None = None) -> None:
        """exchanges: of the same model and pool, where there are graphs."""
        self._model, self._pool = model, pool
        config, heads = model.config, model.heads
        layers = [pool.layer(index) for index in range(config.num_layers)]
        self._layers_at_once = model.layers_over(layers)
        self._exchanges = model.device.backend.exchanges(
            layers, config.windows, config.scale, heads.queries, model.dtype
        )
        self._exchange_graphs = exchanges

    def __call__(self, batches: Sequence[Batch], counters: Counters) -> list[Tensor]:
        """Last hidden states of the wanted rows of each, [M, hidden]. Counts model_s and attend_wait_s."""
        started_s = time.perf_counter()
        if self._layers_at_once is not None and len(batches) == 1 and not (batches[0].links or batches[0].fetched):
            (batch,) = batches
            hidden = [EagerPieces(self._model, self._pool, batch).all(self._layers_at_once)]
        else:
            alone = batches[0] if len(batches) == 1 else None
            hidden = (self._exchanging(alone) if alone else []) or self._by_turns(batches)
            _finish(batches, counters)
        counters.model_s += time.perf_counter() - started_s
        counters.attend_wait_s += sum(batch.waited_s for batch in batches)
        return hidden

    def _exchanging(self, batch: Batch) -> list[Tensor]:
        """All layers in one call, where there is one for this batch, or as many as nothing fails in, and then the
        others; empty where nothing was done."""
        model = self._model
        if self._exchanges is None or model.device.is_async:
            return []
        heads, num_layers = model.heads, model.config.num_layers
        batch.exchange = exchange_of(batch, self._exchanges, num_layers, heads.queries, heads.dim, model.dtype)
        if batch.exchange is None or self._layers_at_once is None:
            return []
        pieces = EagerPieces(model, self._pool, batch)
        done = pass_directly(pieces, self._layers_at_once, batch, batch.exchange, model.device.backend)
        if done is None or isinstance(done, Tensor):
            return [] if done is None else [done]
        layer, attended = done
        if layer == num_layers - 1:
            return [pieces.end(attended)]
        pieces.advance(layer, attended)
        return _in_turn([self._layers(batch, pieces, layer + 1)])

    def _by_turns(self, batches: Sequence[Batch]) -> list[Tensor]:
        """Layer by layer, the first batch first: a later one may read what an earlier one stores."""
        captured = self._exchange_graphs.pieces(batches[0]) if self._exchange_graphs and len(batches) == 1 else None
        passes: list[Generator[None, None, Tensor]] = []
        for batch in batches:
            pieces = captured or EagerPieces(self._model, self._pool, batch)
            pieces.begin()
            passes.append(self._layers(batch, pieces))
        return _in_turn(passes)

    def _layers(self, batch: Batch, pieces: Pieces, first: int = 0) -> Generator[None, None, Tensor]:
        """From this layer on. Pauses in each when its queries are under way."""
        device = self._model.device
        last = self._model.config.num_layers - 1
        for layer in range(first, last):
            pieces.advance(layer, (yield from dist_attention(layer, pieces, batch, device)))
        return pieces.end((yield from dist_attention(last, pieces, batch, device)))


def _in_turn(passes: Sequence[Generator[None, None, Tensor]]) -> list[Tensor]:
    """Each goes on until its next pause, then the next one does."""
    hidden: list[Tensor] = []
    while len(hidden) < len(passes):
        for one in passes:
            try:
                next(one)
            except StopIteration as done:
                hidden.append(done.value)
    return hidden


def _finish(batches: Sequence[Batch], counters: Counters) -> None:
    """All keys at creditors were read: sequences whose keys were not there any more are lost."""
    for batch in batches:
        for link in batch.links:
            link.finish()
        for keys in batch.fetched:
            keys.finish(counters)
            batch.waited_s += keys.waited_s
