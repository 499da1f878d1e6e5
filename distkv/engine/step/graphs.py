"""The stretches between attentions captured, piece by piece, for batches of few rows: there the host is what is slow.

Attention stays outside: its launches depend on how many keys there are. A captured piece reads and writes fixed
tensors; a batch that does not fill them is padded with rows that are stored nowhere.
"""

from __future__ import annotations

from functools import partial

import structlog
import torch
from torch import Tensor

from distkv.engine.device.device import Captured, Run
from distkv.engine.device.pool import KvPool
from distkv.engine.model.decoder import Model
from distkv.engine.step.pieces import EagerStretches, Stretches
from distkv.engine.step.prepare import Batch
from distkv.kernels import FusedQkv

SIZES = (1, 2, 4, 8, 16, 32, 64)
NO_SLOT = -1
"""Where rows that stand for none are stored: `Backend.store` of GPUs skips them."""


class StretchGraphs:
    """Makes the stretches of batches; captures those of a size when it first comes. For one thread and one stream.

    Each half of a step has tensors of its own. When a capture fails, the reason is logged and nothing is captured any
    more.
    """

    def __init__(self, model: Model, pool: KvPool, sizes: tuple[int, ...] = SIZES) -> None:
        self._model, self._pool, self._sizes = model, pool, sizes
        self._captured: dict[tuple[int, int], _Pieces] = {}

    def stretches(self, batch: Batch, half: int = 0) -> Stretches:
        """Captured ones for up to as many rows as the largest size has."""
        num_rows = len(batch.tokens)
        size = min((size for size in self._sizes if size >= num_rows), default=None)
        pieces = None if size is None else self._pieces(size, half)
        return GraphedStretches(pieces, batch) if pieces else EagerStretches(self._model, self._pool, batch)

    def _pieces(self, size: int, half: int) -> _Pieces | None:
        pieces = self._captured.get((size, half))
        if pieces is None:
            try:
                pieces = self._captured[size, half] = _Pieces(self._model, self._pool, size, half)
            except RuntimeError as error:
                # From now on every size is computed eagerly.
                self._sizes = ()
                self._captured.clear()
                structlog.get_logger().warning("no CUDA graphs", size=size, reason=str(error))
        return pieces


class _Pieces:
    """All stretches of a model for `size` rows. Raises RuntimeError when they cannot be captured.

    numbers: int64 [4, size], tokens, positions, slots and offsets; attended: [size, Hq, D]: what is given to them.
    """

    def __init__(self, model: Model, pool: KvPool, size: int, half: int) -> None:
        self._model, self._pool, self._half = model, pool, half
        config, place = model.config, model.compute.device.place
        self.numbers = torch.zeros(4, size, dtype=torch.int64, device=place)
        self.numbers[2] = NO_SLOT
        self.attended = torch.zeros(size, config.num_heads, config.head_dim, dtype=model.dtype, device=place)
        self.begin = self._capture(self._begin)
        _, x, cos, sin = self.begin.results
        self.between: list[Captured] = []
        for layer in range(config.num_layers - 1):
            # Of what came before a layer's attention the next one needs the angles.
            before = FusedQkv(self.attended, config.num_heads, cos, sin)
            self.between.append(self._capture(partial(self._between, layer, x, before)))
            _, x = self.between[-1].results
        self.end = self._capture(lambda: (model.end(x, self.attended),))

    def _capture(self, run: Run) -> Captured:
        run()
        return self._model.compute.device.capture(run, self._half)

    def _begin(self) -> tuple[Tensor, ...]:
        x, qkv = self._model.begin(self.numbers[0], self.numbers[1])
        return self._stored(0, qkv), x, qkv.cos, qkv.sin

    def _between(self, layer: int, x: Tensor, before: FusedQkv) -> tuple[Tensor, ...]:
        x, qkv = self._model.between(layer, x, self.attended, before)
        return self._stored(layer + 1, qkv), x

    def _stored(self, layer: int, qkv: FusedQkv) -> Tensor:
        return self._model.compute.backend.store(qkv, self._pool.layer(layer), self.numbers[2], self.numbers[3])


class GraphedStretches:
    """Stretches that replay captured pieces. Made, and then used up, before the next one of the same pieces."""

    def __init__(self, pieces: _Pieces, batch: Batch) -> None:
        self._pieces, self._batch, self._num_rows = pieces, batch, len(batch.tokens)

    def begin(self) -> Tensor:
        """See Stretches."""
        batch, numbers = self._batch, self._pieces.numbers
        numbers[2].fill_(NO_SLOT)
        given = torch.stack((batch.tokens, batch.positions, batch.slots, batch.offsets))
        numbers[:, : self._num_rows] = given
        return self._replayed(self._pieces.begin)[: self._num_rows]

    def between(self, layer: int, attended: Tensor) -> Tensor:
        """See Stretches."""
        self._pieces.attended[: self._num_rows] = attended
        return self._replayed(self._pieces.between[layer])[: self._num_rows]

    def end(self, attended: Tensor) -> Tensor:
        """See Stretches."""
        self._pieces.attended[: self._num_rows] = attended
        return self._replayed(self._pieces.end)[self._batch.wanted]

    @staticmethod
    def _replayed(piece: Captured) -> Tensor:
        """The first result."""
        piece.replay()
        return piece.results[0]
