"""What captured decodes with keys at creditors read and write: fixed tensors, whose numbers alone change from step to
step, attention to own keys by tables on the device, and the merge of its partials with those of creditors."""

from __future__ import annotations

import math
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distkv.engine.device.pool import KvPool
from distkv.engine.model.decoder import Model
from distkv.engine.step.batch import Batch
from distkv.engine.step.graphs.decode import NO_SLOT, DecodeGraphs
from distkv.engine.step.graphs.device_tables import DeviceTables, TakenTables
from distkv.engine.step.graphs.division import Division
from distkv.kernels import FusedQkv, Partial
from distkv.kernels.attention.static_decode import StaticInputs
from distkv.kernels.mail_table import MailField, MailTable

MOST_PARTIALS = 3
"""Of a row, from creditors: steps with more of them are not captured."""
MOST_CREDITORS = 8
"""Of a step that is one graph."""

_OWN = 4
"""Rows of `ExchangeTensors.numbers` that come from the batch as it lies on the device."""


class ExchangeTensors:
    """For `size` rows of contexts of any length.

    numbers: int64 [9, size], tokens, positions, slots and offsets; changes of the block tables, where and slots; and
    for each of MOST_PARTIALS the row of `staged` that each row has it in. staged: float32 out
    [MOST_PARTIALS · size + 1, Hq, D] and lse [MOST_PARTIALS · size + 1, Hq], partials of creditors, the last of which
    is empty. attended: [size, Hq, D] in the model's dtype, what the o-projection takes. mail: whom a step that is one
    graph asks.
    """

    def __init__(self, model: Model, pool: KvPool, decodes: DecodeGraphs, size: int) -> None:
        self._model, self._pool = model, pool
        self._tables: DeviceTables = decodes.tables
        heads, place, rows = model.heads, model.device.place, MOST_PARTIALS * size + 1
        self.staged = (
            torch.zeros(rows, heads.queries, heads.dim, dtype=torch.float32, device=place),
            torch.full((rows, heads.queries), -torch.inf, dtype=torch.float32, device=place),
        )
        self._nobody = np.zeros((2 + MOST_PARTIALS, size), np.int64)
        self._nobody[0] = len(self._tables.tensor) - 1
        self._nobody[2:] = rows - 1
        own, lines = (_OWN + len(self._nobody), size), (MOST_CREDITORS, len(MailField) + size)
        self._all = torch.zeros(math.prod(own) + math.prod(lines), dtype=torch.int64, device=place)
        self.numbers, mail = self._all[: math.prod(own)].view(own), self._all[math.prod(own) :].view(lines)
        self.mail = MailTable(mail)
        self._blank = np.zeros(len(self._all), np.int64)
        blank = self._blank[: math.prod(own)].reshape(own)
        blank[2], blank[_OWN:] = NO_SLOT, self._nobody
        self._all.copy_(torch.from_numpy(self._blank))
        self.attended = torch.zeros(size, heads.queries, heads.dim, dtype=model.dtype, device=place)
        inputs = StaticInputs(
            self._tables.tensor,
            decodes.max_blocks,
            self.numbers[1],
            self.attended,
            model.config.windows,
            merged_elsewhere=True,
        )
        most_keys = model.device.backend.static_keys[-1]
        self._attention = model.device.backend.static_decode(inputs, pool.layer(0), most_keys)
        self._division = Division(self._attention, decodes.max_blocks, pool.block_tokens, most_keys)

    @property
    def partials(self) -> Partial:
        """Over own keys, of the layer that was attended to last."""
        return self._attention.partials

    def fill(self, batch: Batch, taken: TakenTables, keys: NDArray[np.int64]) -> list[int]:
        """With the rows of a batch. taken: the table of each; keys: [N], how many own ones each sees. Returns the first
        row of `staged` of each link."""
        device, num_rows = self._model.device, len(batch.tokens)
        self.numbers[2].fill_(NO_SLOT)
        self.numbers[:_OWN, :num_rows] = torch.stack((batch.tokens, batch.positions, batch.slots, batch.offsets))
        self._division.fit(taken, keys)
        numbers = self._nobody.copy()
        self._tables.put_changes(numbers[0], numbers[1], device)
        firsts = list(accumulate((link.partial_rows for link in batch.links), initial=0))
        for row, seq in enumerate(batch.seqs):
            for place, (link, entry) in enumerate(seq.remote, 2):
                numbers[place, row] = firsts[link] + entry
        device.write(self.numbers[_OWN:], torch.from_numpy(numbers))
        return firsts[:-1]

    def divide(self, taken: TakenTables, keys: NDArray[np.int64]) -> None:
        """See Division.fit."""
        self._division.fit(taken, keys)

    def blank(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """What `write_all` takes, of no rows, and the part of it that is the mail table, to be filled."""
        numbers = self._blank.copy()
        return numbers, numbers[self.numbers.numel() :].reshape(self.mail.numbers.shape)

    def write_all(self, numbers: NDArray[np.int64], rows: NDArray[np.int64], parts: NDArray[np.int64]) -> None:
        """By one copy. numbers: of `blank`. rows: [4, N], of `self.numbers`. parts: [MOST_PARTIALS, N], of `staged`,
        negative for none."""
        count = rows.shape[1]
        own = numbers[: self.numbers.numel()].reshape(self.numbers.shape)
        own[:_OWN, :count] = rows
        np.copyto(own[_OWN + 2 :, :count], parts, where=parts >= 0)
        self._tables.put_changes(own[_OWN], own[_OWN + 1], self._model.device)
        self._model.device.write(self._all, torch.from_numpy(numbers))

    def begin(self) -> tuple[Tensor, FusedQkv]:
        """What a captured step begins with: the tables as they are now, and the input of the first layer."""
        at, changes = self.numbers[_OWN : _OWN + 2]
        self._tables.tensor.index_copy_(0, at, changes.int())
        return self._model.begin(self.numbers[0], self.numbers[1])

    def store(self, layer: int, qkv: FusedQkv) -> Tensor:
        """The queries of a layer, whose keys and values are stored."""
        return self._model.device.backend.store(qkv, self._pool.layer(layer), self.numbers[2], self.numbers[3])

    def attend(self, layer: int, q: Tensor) -> None:
        """To own keys, into `partials`."""
        config = self._model.config
        self._attention.attend(q, self._pool.layer(layer), config.scale, config.windows[layer])

    def merge(self) -> None:
        """Into `attended`: of each row, partials of creditors in span order, then its own."""
        out, lse = self.staged
        theirs = [(out.index_select(0, rows), lse.index_select(0, rows)) for rows in self.numbers[_OWN + 2 :]]
        self.attended.copy_(self._model.device.backend.merge([*theirs, self.partials])[0])
