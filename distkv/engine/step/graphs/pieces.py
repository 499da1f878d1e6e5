"""What a microbatch computes before, between and after its attentions. `graphs` has the same, captured."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from distkv.engine.device.pool import KvPool
from distkv.engine.model.decoder import Model
from distkv.engine.step.batch import Batch


class Pieces(Protocol):
    """Of one microbatch: begin, store(0), advance(0), store(1), and so on up to the store of the last layer, end."""

    def begin(self) -> None:
        """From the tokens to the first layer."""

    def store(self, layer: int) -> Tensor:
        """Store K and V of a layer; its queries, [N, Hq, D], which hold until the next call."""

    def advance(self, layer: int, attended: Tensor) -> None:
        """From the attention of a layer, float32 [N, Hq, D], to the next layer."""

    def end(self, attended: Tensor) -> Tensor:
        """From the attention of the last layer to the wanted rows of the last hidden states, [M, hidden]."""


class EagerPieces:
    """Pieces computed call by call, for any number of rows."""

    def __init__(self, model: Model, pool: KvPool, batch: Batch) -> None:
        self._model, self._pool, self._batch = model, pool, batch

    def begin(self) -> None:
        """See Pieces."""
        self._x, self._qkv = self._model.begin(self._batch.tokens, self._batch.positions)

    def store(self, layer: int) -> Tensor:
        """See Pieces."""
        batch = self._batch
        return self._model.device.backend.store(self._qkv, self._pool.layer(layer), batch.slots, batch.offsets)

    def advance(self, layer: int, attended: Tensor) -> None:
        """See Pieces."""
        self._x, self._qkv = self._model.advance(layer, self._x, attended, self._qkv)

    def end(self, attended: Tensor) -> Tensor:
        """See Pieces."""
        wanted = self._batch.wanted
        return self._model.end(self._x[wanted], attended[wanted])
