"""Decodes with keys at creditors that are asked by frames: two captured pieces for each layer.

One reaches from the merge of a layer's partials to the next layer's queries, which then leave for the creditors; the
other one attends to own keys meanwhile. The host puts partials of creditors where the merge of the next piece reads
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from distkv.engine.device.device import Captured, Run
from distkv.engine.model.decoder import Model
from distkv.engine.step.batch import Batch
from distkv.engine.step.graphs.device_tables import TakenTables
from distkv.engine.step.graphs.exchange_tensors import ExchangeTensors
from distkv.kernels import FusedQkv, Partial


class CapturedByFrames:
    """All pieces of a model over some tensors. Raises RuntimeError when they cannot be captured.

    stores: per layer, what leads to its queries, the first result. attends: attention to own keys. end_of_step: what
    leads to the last hidden states.
    """

    def __init__(self, model: Model, tensors: ExchangeTensors, group: int) -> None:
        """group: of captured pieces that share memory, see Device.capture."""
        self._model, self.tensors = model, tensors

        def capture(into: list[Captured], run: Run) -> tuple[Tensor, ...]:
            run()
            into.append(model.device.capture(run, group))
            return into[-1].results

        self.stores: list[Captured] = []
        _, x, cos, sin = capture(self.stores, self._first)
        for layer in range(model.config.num_layers - 1):
            # Of what came before a layer's attention the next one needs the angles.
            before = FusedQkv(tensors.attended, model.heads.queries, cos, sin)
            _, x = capture(self.stores, partial(self._next, layer, x, before))
        self.attends: list[Captured] = []
        for layer in range(model.config.num_layers):
            capture(self.attends, partial(self._attend, layer))
        ends: list[Captured] = []
        capture(ends, partial(self._last, x))
        (self.end_of_step,) = ends

    def _first(self) -> tuple[Tensor, ...]:
        x, qkv = self.tensors.begin()
        return self.tensors.store(0, qkv), x, qkv.cos, qkv.sin

    def _next(self, layer: int, x: Tensor, before: FusedQkv) -> tuple[Tensor, ...]:
        self.tensors.merge()
        x, qkv = self._model.advance(layer, x, self.tensors.attended, before)
        return self.tensors.store(layer + 1, qkv), x

    def _attend(self, layer: int) -> tuple[Tensor, ...]:
        self.tensors.attend(layer, self.stores[layer].results[0])
        return ()

    def _last(self, x: Tensor) -> tuple[Tensor, ...]:
        self.tensors.merge()
        return (self._model.end(x, self.tensors.attended),)


class FramePieces:
    """Pieces of a batch that replay captured ones. Made, and then used up, before the next one of the same tensors.

    What leads to a store is replayed with it, and a merge with what follows it: `merge` and `advance` only hand over.
    """

    def __init__(self, captured: CapturedByFrames, batch: Batch, taken: TakenTables, keys: NDArray[np.int64]) -> None:
        """taken: the table of each row. keys: [N], how many own ones each sees."""
        self._captured, self._batch, self._taken, self._keys = captured, batch, taken, keys
        self._num_rows = len(batch.tokens)

    def begin(self) -> None:
        """See Pieces."""
        self._captured.tensors.fill(self._batch, self._taken, self._keys)

    def store(self, layer: int) -> Tensor:
        """See Pieces."""
        piece = self._captured.stores[layer]
        piece.replay()
        return piece.results[0][: self._num_rows]

    def attend(self, layer: int, q: Tensor) -> Partial:
        """See Pieces: of the queries that `store` returned."""
        self._captured.attends[layer].replay()
        out, lse = self._captured.tensors.partials
        return out[: self._num_rows], lse[: self._num_rows]

    def merge(self, local: Partial, partials: Sequence[Partial]) -> Tensor:
        """See Pieces: partials are put where the next piece merges them."""
        outs, lses = self._captured.tensors.staged
        end = 0
        for out, lse in partials:
            start, end = end, end + len(out)
            outs[start:end], lses[start:end] = out, lse
        return self._captured.tensors.attended[: self._num_rows]

    def advance(self, layer: int, attended: Tensor) -> None:
        """See Pieces."""

    def end(self, attended: Tensor) -> Tensor:
        """See Pieces."""
        self._captured.end_of_step.replay()
        return self._captured.end_of_step.results[0][self._batch.wanted]
