"""The stretches between attentions captured, piece by piece, for batches of few rows: there the host is what is slow.

Attention stays outside: its launches depend on how many keys there are. A captured piece reads and writes fixed
tensors; a batch that does not fill them is padded with rows that are stored nowhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog
import torch
from torch import Tensor

from distkv.engine.model import Model
from distkv.engine.pool import KvPool
from distkv.engine.prepare import Batch
from distkv.engine.stretches import EagerStretches, Stretches
from distkv.kernels import Heads

SIZES = (1, 2, 4, 8, 16, 32, 64)
NO_SLOT = -1
"""Where rows that stand for none are stored: `Backend.store` of GPUs skips them."""

Replay = Callable[[], None]


class StretchGraphs:
    """Makes the stretches of batches; captures those of a size when it first comes. For one thread and one lane.

    A lane of the step's halves has tensors of its own. When a capture fails, the reason is logged and nothing is
    captured any more.
    """

    def __init__(self, model: Model, pool: KvPool, sizes: tuple[int, ...] = SIZES) -> None:
        self._model, self._pool, self._sizes = model, pool, sizes
        self._captured: dict[tuple[int, int], _Pieces] = {}

    def stretches(self, batch: Batch, lane: int = 0) -> Stretches:
        """Captured ones for up to as many rows as the largest size has."""
        num_rows = len(batch.tokens)
        size = min((size for size in self._sizes if size >= num_rows), default=None)
        pieces = None if size is None else self._pieces(size, lane)
        return GraphedStretches(pieces, batch) if pieces else EagerStretches(self._model, self._pool, batch)

    def _pieces(self, size: int, lane: int) -> _Pieces | None:
        pieces = self._captured.get((size, lane))
        if pieces is None:
            try:
                pieces = self._captured[size, lane] = _Pieces(self._model, self._pool, size)
            except RuntimeError as error:
                # From now on every size is computed eagerly.
                self._sizes = ()
                self._captured.clear()
                structlog.get_logger().warning("no CUDA graphs", size=size, reason=str(error))
        return pieces


@dataclass(slots=True)
class _Buffers:
    """What the pieces of one size read and write. numbers: int64 [4, size]: tokens, positions, slots, offsets."""

    numbers: Tensor
    x: Tensor
    cos: Tensor
    sin: Tensor
    attended: Tensor
    q: Tensor
    hidden: Tensor


class _Pieces:
    """All stretches of a model for `size` rows. Raises RuntimeError when they cannot be captured."""

    def __init__(self, model: Model, pool: KvPool, size: int) -> None:
        self._model, self._pool = model, pool
        config, device = model.config, model.compute.device

        def rows(*shape: int) -> Tensor:
            return torch.zeros(size, *shape, dtype=model.dtype, device=device.place)

        heads, dim, hidden = config.num_heads, config.head_dim, config.hidden_size
        self.buffers = _Buffers(
            numbers=torch.zeros(4, size, dtype=torch.int64, device=device.place),
            x=rows(hidden), cos=rows(dim), sin=rows(dim), attended=rows(heads, dim), q=rows(heads, dim),
            hidden=rows(hidden),
        )  # fmt: skip
        self.buffers.numbers[2] = NO_SLOT
        between = [self._between(layer) for layer in range(config.num_layers - 1)]
        for run in (self._begin, *between, self._end):
            run()
        self.begin = device.capture(self._begin)
        self.between = [device.capture(run) for run in between]
        self.end = device.capture(self._end)

    def _begin(self) -> None:
        buffers = self.buffers
        x, heads = self._model.begin(buffers.numbers[0], buffers.numbers[1])
        buffers.cos.copy_(heads.cos)
        buffers.sin.copy_(heads.sin)
        self._keep(0, x, heads)

    def _between(self, layer: int) -> Replay:
        def run() -> None:
            before = self._heads_before()
            x, heads = self._model.between(layer, self.buffers.x, self.buffers.attended, before)
            self._keep(layer + 1, x, heads)

        return run

    def _end(self) -> None:
        self.buffers.hidden.copy_(self._model.end(self.buffers.x, self.buffers.attended))

    def _heads_before(self) -> Heads:
        """Of what came before a layer's attention the next one needs the angles."""
        return Heads(self.buffers.q, self._model.config.num_heads, self.buffers.cos, self.buffers.sin)

    def _keep(self, layer: int, x: Tensor, heads: Heads) -> None:
        buffers = self.buffers
        kv = self._pool.layer(layer)
        q = self._model.compute.backend.store(heads, kv, buffers.numbers[2], buffers.numbers[3])
        buffers.q.copy_(q)
        buffers.x.copy_(x)


class GraphedStretches:
    """Stretches that replay captured pieces. Made, and then used up, before the next one of the same pieces."""

    def __init__(self, pieces: _Pieces, batch: Batch) -> None:
        self._pieces, self._batch, self._num_rows = pieces, batch, len(batch.tokens)

    def begin(self) -> Tensor:
        """See Stretches."""
        batch, numbers = self._batch, self._pieces.buffers.numbers
        numbers[2].fill_(NO_SLOT)
        given = torch.stack((batch.tokens, batch.positions, batch.slots, batch.offsets))
        numbers[:, : self._num_rows] = given
        self._pieces.begin()
        return self._q()

    def between(self, layer: int, attended: Tensor) -> Tensor:
        """See Stretches."""
        self._pieces.buffers.attended[: self._num_rows] = attended
        self._pieces.between[layer]()
        return self._q()

    def end(self, attended: Tensor) -> Tensor:
        """See Stretches."""
        buffers = self._pieces.buffers
        buffers.attended[: self._num_rows] = attended
        self._pieces.end()
        return buffers.hidden[self._batch.wanted]

    def _q(self) -> Tensor:
        return self._pieces.buffers.q[: self._num_rows]
