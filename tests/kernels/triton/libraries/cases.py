"""Sequences in a pool of several layers, whose slots are dealt at random, and their attention in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from distkv.kernels import BlockTable, RowKv
from distkv.kernels.attention.reference import micro_attention
from distkv.kernels.triton.libraries.pages import PagedAttention


@dataclass(frozen=True)
class Sequences:
    """rows[i] query rows over lengths[i] keys, which lie in layer `kv` of three."""

    kv: RowKv
    tables: tuple[BlockTable, ...]
    rows: tuple[int, ...]
    q: Tensor
    scale: float

    @classmethod
    def drawn(
        cls, rows: Sequence[int], lengths: Sequence[int], heads: tuple[int, int, int], tokens: int,
        dtype: torch.dtype, device: torch.device,
    ) -> Sequences:  # fmt: skip
        """Every table has one block more than its keys fill; what no key has is NaN."""
        num_heads, kv_heads, dim = heads
        generator = torch.Generator().manual_seed(sum(lengths))
        blocks = [-(-length // tokens) + 1 for length in lengths]
        order = torch.randperm(sum(blocks), generator=generator).tolist()
        memory = torch.full((len(order), 3, 2, kv_heads, tokens * dim), torch.nan)
        kv = RowKv.of(memory[:, 1, 0], memory[:, 1, 1], dim, tokens)
        tables = []
        for count, length in zip(blocks, lengths, strict=True):
            slots, order = order[:count], order[count:]
            tables.append(BlockTable(slots, range(0, count * tokens, tokens), length, tokens))
            for index in range(length):
                slot, place = slots[index // tokens], index % tokens
                kv.k[slot, :, place] = torch.randn(kv_heads, dim, generator=generator)
                kv.v[slot, :, place] = torch.randn(kv_heads, dim, generator=generator)
        memory = memory.to(dtype).to(device)
        q = torch.randn(sum(rows), num_heads, dim, generator=generator).to(dtype).to(device)
        placed = RowKv.of(memory[:, 1, 0], memory[:, 1, 1], dim, tokens)
        return cls(placed, tuple(tables), tuple(rows), q, dim**-0.5)

    def check(self, attention: PagedAttention, tolerance: float) -> None:
        """Its partials are the reference's."""
        out, lse = attention.partial(self.q, self.kv)
        assert out.dtype == lse.dtype == torch.float32
        first = 0
        for count, table in zip(self.rows, self.tables, strict=True):
            here = slice(first, first + count)
            first += count
            positions = torch.arange(table.num_keys - count, table.num_keys)
            k, v = (half.cpu() for half in (self.kv.k, self.kv.v))
            expected = micro_attention(self.q[here].cpu(), k, v, table, positions, self.scale)
            torch.testing.assert_close(out[here].cpu().double(), expected[0], atol=tolerance, rtol=tolerance)
            torch.testing.assert_close(lse[here].cpu().double(), expected[1], atol=tolerance, rtol=tolerance)
