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
        self._all_layers = model.forward_over([pool.layer(index) for index in range(model.config.num_layers)])
        config, heads = model.config, model.heads
        layers = [pool.layer(index) for index in range(config.num_layers)]
        self._exchanges = model.device.backend.exchanges(
            layers, config.windows, config.scale, heads.queries, model.dtype
        )
        self._exchange_graphs = exchanges

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

    def _by_turns(self, batches: Sequence[Batch]) -> list[Tensor]:
        """Layer by layer, the first batch first: a later one may read what an earlier one stores."""
        captured = self._exchange_graphs.pieces(batches[0]) if self._exchange_graphs and len(batches) == 1 else None
        passes = [self._layers(batch, captured or EagerPieces(self._model, self._pool, batch)) for batch in batches]
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


def _finish(batches: Sequence[Batch], counters: Counters) -> None:
    """All keys at creditors were read: sequences whose keys were not there any more are lost."""
    for batch in batches:
        for link in batch.links:
            link.finish()
        for keys in batch.fetched:
            keys.finish(counters)
            batch.waited_s += keys.waited_s
