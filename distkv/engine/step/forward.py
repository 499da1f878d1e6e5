"""The forward pass of a step. Its halves take turns: while one waits for partials of peers, the other computes."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from torch import Tensor

from distkv.engine.attention.dist_attention import ask, merged
from distkv.engine.device.pool import KvPool
from distkv.engine.model.decoder import Model
from distkv.engine.step.graphs import StretchGraphs
from distkv.engine.step.pieces import EagerStretches, Stretches
from distkv.engine.step.prepare import Batch


class Forward:
    """One model over one pool. Used by one thread.

    A batch without peers is one call where the backend can compute all layers in one. On devices with a host of their
    own to be kept from waiting, stretches between attentions are captured.
    """

    def __init__(self, model: Model, pool: KvPool) -> None:
        self._model, self._pool = model, pool
        self._here = model.forward_over([pool.layer(index) for index in range(model.config.num_layers)])
        self._graphs = StretchGraphs(model, pool) if model.compute.device.is_async else None

    def run(self, batches: Sequence[Batch]) -> list[Tensor]:
        """Last hidden states of the wanted rows of each, [M, hidden].

        The batches take turns layer by layer, the first one first: a later one may read what an earlier one stores.
        """
        if len(batches) == 1 and self._here is not None and not batches[0].exchanges:
            (batch,) = batches
            return [self._here(batch.tokens, batch.metadata, batch.slots, batch.offsets, batch.wanted)]
        passes = [self._layers(batch, self._stretches(batch, half)) for half, batch in enumerate(batches)]
        found: list[Tensor] = []
        while not found:
            for one in passes:
                try:
                    next(one)
                except StopIteration as done:
                    found.append(done.value)
        return found

    def _layers(self, batch: Batch, stretches: Stretches) -> Generator[None, Any, Tensor]:
        """Pauses in each layer when its queries are sent."""
        config, compute = self._model.config, self._model.compute
        q = stretches.begin()
        for layer in range(config.num_layers):
            kv = self._pool.layer(layer)
            asked = ask(layer, q, kv, batch, compute, config.scale, config.windows[layer])
            yield
            attended = merged(asked, batch, compute)
            if layer < config.num_layers - 1:
                q = stretches.between(layer, attended)
        return stretches.end(attended)

    def _stretches(self, batch: Batch, half: int) -> Stretches:
        if self._graphs is None:
            return EagerStretches(self._model, self._pool, batch)
        return self._graphs.stretches(batch, half)
