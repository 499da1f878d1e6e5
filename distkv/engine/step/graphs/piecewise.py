"""The pieces between attentions captured as graphs, for batches of few rows: there the host is what is slow.

Attention stays outside: its launches depend on how many keys there are. A captured piece ends with the
store of a layer; it reads and writes fixed tensors. A batch that does not fill them is padded with rows that are stored
nowhere.
"""

from __future__ import annotations

from functools import partial

import structlog
import torch
from torch import Tensor

from distkv.engine.device.device import Captured, Run
from distkv.engine.device.pool import KvPool
from distkv.engine.model.decoder import Model
from distkv.engine.step.batch import Batch
from distkv.engine.step.graphs.pieces import CalledAttention, EagerPieces, Pieces
from distkv.kernels import FusedQkv

SIZES = (1, 2, 4, 8, 16, 32, 64)
NO_SLOT = -1
"""Where rows that stand for none are stored: `Backend.store` of GPUs skips them."""


class PiecewiseGraphs:
    """Makes the pieces of batches; captures those of a size when it first comes. For one thread and one stream.

    Each microbatch of a step has tensors of its own. When a capture fails, the reason is logged and nothing is captured
    any more. problem: that reason.
    """

    problem: str | None = None

    def __init__(self, model: Model, pool: KvPool, sizes: tuple[int, ...] = SIZES) -> None:
        self._model, self._pool, self._sizes = model, pool, sizes
        self._captured: dict[tuple[int, int], CapturedPieces] = {}

    def pieces(self, batch: Batch, microbatch: int = 0) -> Pieces:
        """Captured ones for up to as many rows as the largest size has."""
        num_rows = len(batch.tokens)
        size = min((size for size in self._sizes if size >= num_rows), default=None)
        captured = None if size is None else self._capture(size, microbatch)
        if captured is None:
            return EagerPieces(self._model, self._pool, batch)
        return ReplayedPieces(captured, self._model, self._pool, batch)

    def _capture(self, size: int, microbatch: int) -> CapturedPieces | None:
        captured = self._captured.get((size, microbatch))
        if captured is None:
            try:
                captured = CapturedPieces(self._model, self._pool, size, microbatch)
                captured.capture()
            except RuntimeError as error:
                # From now on every size is computed eagerly.
                self._sizes = ()
                self._captured.clear()
                self.problem = str(error)
                structlog.get_logger().warning("no CUDA graphs", size=size, of="pieces", reason=str(error))
                return None
            self._captured[size, microbatch] = captured
        return captured


class CapturedPieces:
    """All pieces of a model for `size` rows.

    numbers: int64 [4 and more, size], tokens, positions, slots and offsets; attended: [size, Hq, D]: what is given to
    them. stores: per layer, what leads to it and stores its K and V; the first result is its queries. end: what leads
    to the last hidden states. The last two are there after `capture`.
    """

    stores: list[Captured]
    end: Captured

    def __init__(self, model: Model, pool: KvPool, size: int, group: int, num_numbers: int = 4) -> None:
        """group: of captured pieces that share memory, see Device.capture."""
        self._model, self._pool, self._group = model, pool, group
        heads, place = model.heads, model.device.place
        self.numbers = torch.zeros(num_numbers, size, dtype=torch.int64, device=place)
        self.numbers[2] = NO_SLOT
        self.attended = torch.zeros(size, heads.queries, heads.dim, dtype=model.dtype, device=place)

    def capture(self) -> None:
        """Make all pieces. Raises RuntimeError when they cannot be captured."""
        model, heads = self._model, self._model.heads
        self.stores = [self._capture(self._first)]
        _, x, cos, sin = self.stores[0].results
        for layer in range(model.config.num_layers - 1):
            # Of what came before a layer's attention the next one needs the angles.
            before = FusedQkv(self.attended, heads.queries, cos, sin)
            self.stores.append(self._capture(partial(self._next, layer, x, before)))
            _, x = self.stores[-1].results
        self.end = self._capture(partial(self._last, x))

    def _capture(self, run: Run) -> Captured:
        run()
        return self._model.device.capture(run, self._group)

    def _first(self) -> tuple[Tensor, ...]:
        x, qkv = self._model.begin(self.numbers[0], self.numbers[1])
        return self._stored(0, qkv), x, qkv.cos, qkv.sin

    def _next(self, layer: int, x: Tensor, before: FusedQkv) -> tuple[Tensor, ...]:
        x, qkv = self._model.advance(layer, x, self.attended, before)
        return self._stored(layer + 1, qkv), x

    def _last(self, x: Tensor) -> tuple[Tensor, ...]:
        return (self._model.end(x, self.attended),)

    def _stored(self, layer: int, qkv: FusedQkv) -> Tensor:
        return self._model.device.backend.store(qkv, self._pool.layer(layer), self.numbers[2], self.numbers[3])


class ReplayedPieces(CalledAttention):
    """Pieces that replay captured ones. Made, and then used up, before the next one of the same tensors.

    What leads to a store is replayed with it: `begin` and `advance` only hand over its input.
    """

    def __init__(self, captured: CapturedPieces, model: Model, pool: KvPool, batch: Batch) -> None:
        super().__init__(model, pool, batch)
        self._captured, self._num_rows = captured, len(batch.tokens)

    def begin(self) -> None:
        """See Pieces."""
        batch, numbers = self._batch, self._captured.numbers
        numbers[2].fill_(NO_SLOT)
        numbers[:4, : self._num_rows] = torch.stack((batch.tokens, batch.positions, batch.slots, batch.offsets))

    def store(self, layer: int) -> Tensor:
        """See Pieces."""
        return self._replayed(self._captured.stores[layer])[: self._num_rows]

    def advance(self, layer: int, attended: Tensor) -> None:
        """See Pieces."""
        self._captured.attended[: self._num_rows] = attended

    def end(self, attended: Tensor) -> Tensor:
        """See Pieces."""
        self._captured.attended[: self._num_rows] = attended
        return self._replayed(self._captured.end)[self._batch.wanted]

    @staticmethod
    def _replayed(piece: Captured) -> Tensor:
        """The first result."""
        piece.replay()
        return piece.results[0]
