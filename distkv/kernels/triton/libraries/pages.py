"""Block tables as paged attention of other libraries takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distkv.kernels.attention.block_table import BlockTable
from distkv.kernels.attention.layout import RowKv
from distkv.kernels.attention.merge import Partial


class PagedAttention(Protocol):
    """Attention of a library over the pages it was made for, for as many layers as share them. No window, no ALiBi."""

    def run(self, q: Tensor, kv: RowKv) -> tuple[Tensor, Tensor]:
        """The library's own result, as it comes: out in the type of q, lse in its own base and order.

        q: [N, Hq, D], sequence by sequence, in the type of the keys.
        """

    def partial(self, q: Tensor, kv: RowKv) -> Partial:
        """The same as Backend.attend has it: out float32, rounded to the type of q before; lse a natural log."""


@dataclass(frozen=True)
class Pages:
    """Where the keys of S sequences lie, on the host. A page is an rBlock, its number a slot.

    causal: the rows of a sequence are its last ones, in order: row i of n sees all keys but the last n - 1 - i. Else
    all rows see all keys. rows: int32 [S], query rows of each. lengths: int32 [S], its keys. first_page: int32 [S + 1],
    where the pages of each begin in `slots`, and the end. slots: int32 [pages]. last_tokens: int32 [S], keys in the
    last page of each.
    """

    rows: Tensor
    lengths: Tensor
    first_page: Tensor
    slots: Tensor
    last_tokens: Tensor
    block_tokens: int
    causal: bool

    @classmethod
    def of(cls, rows: Sequence[int], block_tables: Sequence[BlockTable], *, causal: bool = True) -> Pages:
        """rows[i]: how many query rows block_tables[i] has.

        Raises ValueError for a sequence without keys or without rows, and for a causal one with fewer keys than rows:
        libraries differ in what they make of a row without keys.
        """
        tokens = block_tables[0].block_tokens
        lengths = [table.num_existing for table in block_tables]
        for count, length in zip(rows, lengths, strict=True):
            if not (0 < count <= length if causal else count > 0 and length > 0):
                most = "from one row to as many as keys" if causal else "at least one row and one key"
                raise ValueError(f"expected {most}, got {count} rows over {length} keys")
        used = [-(-length // tokens) for length in lengths]
        slots = [np.asarray(table.slots[:count], np.int32) for table, count in zip(block_tables, used, strict=True)]
        return cls(
            rows=torch.tensor(rows, dtype=torch.int32),
            lengths=torch.tensor(lengths, dtype=torch.int32),
            first_page=_ends(used),
            slots=torch.from_numpy(np.concatenate(slots)),
            last_tokens=torch.tensor([(length - 1) % tokens + 1 for length in lengths], dtype=torch.int32),
            block_tokens=tokens,
            causal=causal,
        )

    @property
    def first_row(self) -> Tensor:
        """int32 [S + 1]: where the rows of each begin, and the end."""
        return _ends(self.rows.tolist())

    @property
    def table(self) -> Tensor:
        """int32 [S, pages of the longest]: the slots of each sequence, then zeros."""
        counts = self.first_page.diff()
        table = torch.zeros(len(counts), int(counts.max()), dtype=torch.int32)
        table[torch.arange(table.shape[1]) < counts[:, None]] = self.slots
        return table


def mask_of(rows: Sequence[range], block_tables: Sequence[BlockTable], positions: NDArray[np.int64]) -> bool | None:
    """Whether what the rows of all sequences see is causal, as `Pages` means it; None if neither that nor all keys.

    positions: of every query row. A sequence has rows; one without keys has neither mask.
    """
    causal = full = True
    for there, table in zip(rows, block_tables, strict=True):
        keys = table.num_existing
        if not keys:
            return None
        here = positions[there.start : there.stop]
        sees_all = int(here.min()) >= int(table.key_positions(keys - 1, keys)[0])
        full = full and sees_all
        if len(there) > 1 or not sees_all:
            last = table.key_positions(keys - len(there), keys) if len(there) <= keys else None
            causal = causal and last is not None and np.array_equal(here, last)
        if not (causal or full):
            return None
    return causal


def _ends(counts: Sequence[int]) -> Tensor:
    """0 and the running sums."""
    return torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)
