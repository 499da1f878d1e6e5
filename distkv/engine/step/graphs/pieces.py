"""What a microbatch computes before, between and after its attentions. `graphs` has the same, captured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from distkv.engine.device.pool import KvPool
from distkv.engine.model.decoder import Model
from distkv.engine.step.batch import Batch
from distkv.kernels import Partial
from distkv.kernels.exchange import Exchange
from distkv.kernels.layer.layers import Layers, Passed


class Pieces(Protocol):
    """Of one microbatch: begin; for each layer store, attend, merge, and advance, but end for the last."""

    def begin(self) -> None:
        """From the tokens to the first layer."""

    def store(self, layer: int) -> Tensor:
        """Store K and V of a layer; its queries, [N, Hq, D], which hold until the next call."""

    def attend(self, layer: int, q: Tensor) -> Partial:
        """Attention of these queries to the own keys of a layer: float32 out [N, Hq, D] and lse [N, Hq]."""

    def merge(self, local: Partial, partials: Sequence[Partial]) -> Tensor:
        """What `advance` and `end` take of attention to all keys. local: of `attend`. partials: of the links of the
        batch, then of its fetched keys."""

    def advance(self, layer: int, attended: Tensor) -> None:
        """From the attention of a layer to the next layer."""

    def end(self, attended: Tensor) -> Tensor:
        """From the attention of the last layer to the wanted rows of the last hidden states, [M, hidden]."""


class CalledAttention:
    """The attention of a batch by calls that depend on its keys; merged float32, [N, Hq, D]."""

    def __init__(self, model: Model, pool: KvPool, batch: Batch) -> None:
        self._model, self._pool, self._batch = model, pool, batch

    def attend(self, layer: int, q: Tensor) -> Partial:
        """See Pieces."""
        config, backend = self._model.config, self._model.device.backend
        return backend.attend(q, self._pool.layer(layer), self._batch.metadata, config.scale, config.windows[layer])

    def merge(self, local: Partial, partials: Sequence[Partial]) -> Tensor:
        """See Pieces."""
        return self._batch.merge_plan.merge(local, partials, self._model.device.backend)


class EagerPieces(CalledAttention):
    """Pieces computed call by call, for any number of rows."""

    def begin(self) -> None:
        """See Pieces."""
        self._x, self._qkv = self._model.begin(self._batch.tokens, self._batch.positions)

    def all(self, layers: Layers) -> Tensor:
        """All layers in one call, where all keys lie here: the wanted rows of the last hidden states."""
        self.begin()
        batch = self._batch
        return layers(self._x, self._qkv, batch.metadata, batch.slots, batch.offsets, batch.wanted)

    def all_exchanging(self, layers: Layers, exchange: Exchange) -> Passed:
        """The same by an exchange. Where it fails this goes on with `advance`, or `end`, of that layer."""
        self.begin()
        batch = self._batch
        return layers.exchanging(self._x, self._qkv, batch.metadata, batch.slots, batch.offsets, batch.wanted, exchange)

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
