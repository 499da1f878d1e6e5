"""Decode steps with keys at creditors, captured but for the exchange itself: two pieces for each layer.

One reaches from the merge of a layer's partials to the next layer's queries, which then leave for the creditors; the
other one attends to own keys meanwhile, by tables on the device (see `graphs.decode`). Partials of creditors are put
where the merge of the next piece reads them. So nothing that a layer launches depends on its keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch import Tensor

from distkv.engine.device.pool import KvPool
from distkv.engine.model.decoder import Model
from distkv.engine.step.batch import Batch
from distkv.engine.step.graphs.decode import DecodeGraphs
from distkv.engine.step.graphs.device_tables import DeviceTables, TakenTables
from distkv.engine.step.graphs.division import Division
from distkv.engine.step.graphs.piecewise import CapturedPieces, ReplayedPieces
from distkv.kernels import FusedQkv, Partial
from distkv.kernels.static_decode import StaticInputs

EXCHANGE_SIZES = (1, 4, 16, 64)
MOST_PARTIALS = 3
"""Of a row, from creditors: more of them are merged between pieces of another kind."""

_GROUP = 3
"""Of graphs that share memory: others have those before."""
_OWN_NUMBERS = 4
"""Rows of `CapturedPieces.numbers` that are the same for all pieces."""


class ExchangeGraphs:
    """Makes the pieces of decode steps with keys at creditors; captures those of a size when it first comes. For one
    thread and one stream. When a capture fails, the reason is logged and nothing is captured any more. problem: that
    reason."""

    problem: str | None = None

    def __init__(self, model: Model, pool: KvPool, decodes: DecodeGraphs, sizes: tuple[int, ...] = EXCHANGE_SIZES):
        """decodes: whose block tables these share."""
        self._model, self._pool, self._decodes, self._sizes = model, pool, decodes, sizes
        self._captured: dict[int, _CapturedExchange] = {}

    def pieces(self, batch: Batch) -> ExchangePieces | None:
        """For the only microbatch of a step; None if there are none for it: it asks no creditor, or has chunks, fetched
        keys, gaps between own blocks, too many rows, too long ones or ones of too many partials, or a capture
        failed."""
        num_rows = len(batch.tokens)
        size = next((size for size in self._sizes if size >= num_rows), None)
        if size is None or not batch.links or batch.fetched:
            return None
        if any(len(seq.tokens) > 1 or len(seq.remote) > MOST_PARTIALS for seq in batch.seqs):
            return None
        steps = [seq.step for seq in batch.seqs]
        taken = self._decodes.tables.take([step.request_id for step in steps], [step.local for step in steps])
        if taken is None:
            return None
        captured = self._capture(size)
        if captured is None:
            return None
        keys = np.array([step.end for step in steps]) - taken.first_blocks * self._pool.block_tokens
        return ExchangePieces(captured, self._model, self._pool, batch, taken, keys)

    def capture_all(self) -> None:
        """All that steps can need, before the first of them."""
        for size in self._sizes:
            self._capture(size)

    def _capture(self, size: int) -> _CapturedExchange | None:
        captured = self._captured.get(size)
        if captured is None and self.problem is None:
            try:  # a kernel that does not compile or fit is no reason to stop either
                captured = _CapturedExchange(self._model, self._pool, self._decodes, size)
                captured.capture()
            except Exception as error:
                self.problem = str(error)
                self._sizes = ()
                self._captured.clear()
                structlog.get_logger().warning("no CUDA graphs", size=size, of="exchanges", reason=str(error))
                return None
            self._captured[size] = captured
        return captured


class _CapturedExchange(CapturedPieces):
    """For `size` rows of contexts of any length.

    numbers: then changes of the block tables, where and slots, and for each of MOST_PARTIALS the row of `staged` that
    each row has it in. nobody: of `numbers` but the first four, on the host, for rows that stand for none. staged:
    float32 out [MOST_PARTIALS · size + 1, Hq, D] and lse [MOST_PARTIALS · size + 1, Hq], partials of creditors, the
    last of which is empty. attends: per layer, attention to own keys, whose results `partials` hold.
    """

    def __init__(self, model: Model, pool: KvPool, decodes: DecodeGraphs, size: int) -> None:
        super().__init__(model, pool, size, _GROUP, _OWN_NUMBERS + 2 + MOST_PARTIALS)
        self.tables: DeviceTables = decodes.tables
        heads, place, rows = model.heads, model.device.place, MOST_PARTIALS * size + 1
        self.staged = (
            torch.zeros(rows, heads.queries, heads.dim, dtype=torch.float32, device=place),
            torch.full((rows, heads.queries), -torch.inf, dtype=torch.float32, device=place),
        )
        self.nobody = np.zeros((2 + MOST_PARTIALS, size), np.int64)
        self.nobody[0] = len(self.tables.tensor) - 1
        self.nobody[2:] = rows - 1
        self.numbers[_OWN_NUMBERS:] = torch.from_numpy(self.nobody).to(place)
        inputs = StaticInputs(
            self.tables.tensor,
            decodes.max_blocks,
            self.numbers[1],
            self.attended,
            model.config.windows,
            merged_elsewhere=True,
        )
        most_keys = model.device.backend.static_keys[-1]
        self._attention = model.device.backend.static_decode(inputs, pool.layer(0), most_keys)
        self.division = Division(self._attention, decodes.max_blocks, pool.block_tokens, most_keys)

    @property
    def partials(self) -> Partial:
        """Over own keys, of the layer that was attended to last."""
        return self._attention.partials

    def capture(self) -> None:
        """See CapturedPieces."""
        super().capture()
        config, device = self._model.config, self._model.device

        def attend(layer: int) -> tuple[Tensor, ...]:
            q = self.stores[layer].results[0]
            self._attention.attend(q, self._pool.layer(layer), config.scale, config.windows[layer])
            return ()

        self.attends = []
        for layer in range(config.num_layers):
            attend(layer)
            self.attends.append(device.capture(partial(attend, layer), self._group))

    def _first(self) -> tuple[Tensor, ...]:
        at, changes = self.numbers[_OWN_NUMBERS : _OWN_NUMBERS + 2]
        self.tables.tensor.index_copy_(0, at, changes.int())
        return super()._first()

    def _next(self, layer: int, x: Tensor, before: FusedQkv) -> tuple[Tensor, ...]:
        self._merge()
        return super()._next(layer, x, before)

    def _last(self, x: Tensor) -> tuple[Tensor, ...]:
        self._merge()
        return super()._last(x)

    def _merge(self) -> None:
        """Into `attended`: of each row, partials of creditors in span order, then its own."""
        out, lse = self.staged
        theirs = [(out.index_select(0, rows), lse.index_select(0, rows)) for rows in self.numbers[_OWN_NUMBERS + 2 :]]
        self.attended.copy_(self._model.device.backend.merge([*theirs, self.partials])[0])


class ExchangePieces(ReplayedPieces):
    """Pieces of a batch that replay captured ones, attention to own keys and merges with them."""

    _captured: _CapturedExchange

    def __init__(
        self,
        captured: _CapturedExchange,
        model: Model,
        pool: KvPool,
        batch: Batch,
        taken: TakenTables,
        keys: NDArray[np.int64],
    ) -> None:
        """taken: the table of each row. keys: [N], how many own ones each sees."""
        super().__init__(captured, model, pool, batch)
        self._taken, self._keys = taken, keys

    def begin(self) -> None:
        """See Pieces."""
        super().begin()
        captured, device = self._captured, self._model.device
        captured.division.fit(self._taken, self._keys)
        numbers = captured.nobody.copy()
        captured.tables.put_changes(numbers[0], numbers[1], device)
        firsts = list(accumulate((link.partial_rows for link in self._batch.links), initial=0))
        for row, seq in enumerate(self._batch.seqs):
            for place, (link, entry) in enumerate(seq.remote, 2):
                numbers[place, row] = firsts[link] + entry
        device.write(captured.numbers[_OWN_NUMBERS:], torch.from_numpy(numbers))

    def attend(self, layer: int, q: Tensor) -> Partial:
        """See Pieces: of the queries that `store` returned."""
        self._captured.attends[layer].replay()
        out, lse = self._captured.partials
        return out[: self._num_rows], lse[: self._num_rows]

    def merge(self, local: Partial, partials: Sequence[Partial]) -> Tensor:
        """See Pieces: partials are put where the next piece merges them."""
        outs, lses = self._captured.staged
        end = 0
        for out, lse in partials:
            start, end = end, end + len(out)
            outs[start:end], lses[start:end] = out, lse
        return self._captured.attended[: self._num_rows]

    def advance(self, layer: int, attended: Tensor) -> None:
        """See Pieces."""

    def end(self, attended: Tensor) -> Tensor:
        """See Pieces."""
        return self._replayed(self._captured.end)[self._batch.wanted]
