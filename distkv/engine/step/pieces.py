"""What a batch computes before, between and after its attentions. `graphs` has the same, captured."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from distkv.engine.device.pool import KvPool
from distkv.engine.model.decoder import Model
from distkv.engine.step.prepare import Batch
from distkv.kernels import FusedQkv


class Stretches(Protocol):
    """Of one batch. Each call stores the batch's K and V of a layer and returns its queries, [N, Hq, D], which hold
    until the next call."""

    def begin(self) -> Tensor:
        """From the tokens to the first layer."""

    def between(self, layer: int, attended: Tensor) -> Tensor:
        """From the attention of a layer, float32 [N, Hq, D], to the next layer."""

    def end(self, attended: Tensor) -> Tensor:
        """From the attention of the last layer to the wanted rows of the last hidden states, [M, hidden]."""


class EagerStretches:
    """Stretches computed call by call, for any number of rows."""

    def __init__(self, model: Model, pool: KvPool, batch: Batch) -> None:
        self._model, self._pool, self._batch = model, pool, batch

    def begin(self) -> Tensor:
        """See Stretches."""
        batch = self._batch
        self._x, self._qkv = self._model.begin(batch.tokens, batch.positions)
        return self._store(0, self._qkv)

    def between(self, layer: int, attended: Tensor) -> Tensor:
        """See Stretches."""
        self._x, self._qkv = self._model.between(layer, self._x, attended, self._qkv)
        return self._store(layer + 1, self._qkv)

    def end(self, attended: Tensor) -> Tensor:
        """See Stretches."""
        wanted = self._batch.wanted
        return self._model.end(self._x[wanted], attended[wanted])

    def _store(self, layer: int, qkv: FusedQkv) -> Tensor:
        batch = self._batch
        return self._model.compute.backend.store(qkv, self._pool.layer(layer), batch.slots, batch.offsets)
