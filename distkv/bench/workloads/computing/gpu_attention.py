"""Attention of a batch on a GPU, for the Triton backend and for what a user could call instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from distkv.bench.workloads.computing.attention import BLOCK_TOKENS, Shape
from distkv.kernels import AttentionMetadata, Backend, BlockTable, RowKv

SDPA = {
    "torch flash": SDPBackend.FLASH_ATTENTION,
    "torch cuDNN": SDPBackend.CUDNN_ATTENTION,
    "torch efficient": SDPBackend.EFFICIENT_ATTENTION,
}
WORKSPACE_BYTES = 256 << 20


@dataclass(frozen=True)
class Cells:
    """So many sequences of so many keys each."""

    sequences: int
    keys: int

    def __str__(self) -> str:
        return f"{self.sequences} x {self.keys:,}"


class PagedBatch:
    """bfloat16 keys of a batch in a paged pool, in blocks of random order, and the same amount contiguous."""

    def __init__(self, shape: Shape, cells: Cells, device: torch.device) -> None:
        self.shape, self.cells, self._device = shape, cells, device
        self._blocks = cells.keys // BLOCK_TOKENS
        slots = cells.sequences * self._blocks
        self._pool = torch.randn(slots, 2, shape.kv_heads, BLOCK_TOKENS * shape.dim, device=device).bfloat16()
        self.kv = RowKv.of(self._pool[:, 0], self._pool[:, 1], shape.dim, BLOCK_TOKENS)
        order = torch.randperm(slots, generator=torch.Generator().manual_seed(0))
        self.slots = order.view(cells.sequences, self._blocks)

    @property
    def num_bytes(self) -> int:
        """Of K and V."""
        return self._pool.numel() * self._pool.element_size()

    def queries(self, rows: int) -> Tensor:
        """bfloat16 [sequences · rows, Hq, D], sequence by sequence."""
        count = self.cells.sequences * rows
        generator = torch.Generator().manual_seed(rows)
        return torch.randn(count, self.shape.heads, self.shape.dim, generator=generator).bfloat16().to(self._device)

    def ours(self, backend: Backend, rows: int) -> Callable[[], Any]:
        """Attention of the last `rows` tokens of each sequence."""
        count, keys = self.cells.sequences, self.cells.keys
        starts = tuple(range(0, keys, BLOCK_TOKENS))
        metadata = AttentionMetadata(
            tuple(range(i * rows, (i + 1) * rows) for i in range(count)),
            tuple(BlockTable(tuple(slots), starts, keys, BLOCK_TOKENS) for slots in self.slots.tolist()),
            torch.arange(keys - rows, keys, device=self._device).repeat(count),
        )
        return partial(backend.attend, self.queries(rows), self.kv, metadata, self.shape.dim**-0.5)

    def sdpa(self, rows: int) -> dict[str, Callable[[], Tensor]]:
        """torch's fused kernels that take this shape, over contiguous keys; causal for more than one row."""
        keys, values = (
            half[self.slots.to(self._device)].transpose(1, 2).flatten(2, 3) for half in (self.kv.k, self.kv.v)
        )
        q = self.queries(rows).view(self.cells.sequences, rows, self.shape.heads, self.shape.dim).transpose(1, 2)
        found: dict[str, Callable[[], Tensor]] = {}
        for name, kind in SDPA.items():
            work = partial(_sdpa, kind, q, keys, values, rows > 1)
            try:
                work()
            except RuntimeError:  # it does not take such tensors, or is not there
                continue
            found[name] = work
        return found

    def flashinfer(self) -> Callable[[], Tensor] | None:
        """FlashInfer's paged decode over the same pages in the same order; None where it is not installed."""
        try:
            import flashinfer  # type: ignore[import-not-found]
        except ImportError:
            return None
        count, shape = self.cells.sequences, self.shape
        k, v = (half.contiguous() for half in (self.kv.k, self.kv.v))
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=self._device),
            "HND",
            use_tensor_cores=shape.heads // shape.kv_heads >= 4,
        )
        wrapper.plan(
            torch.arange(0, (count + 1) * self._blocks, self._blocks, dtype=torch.int32, device=self._device),
            self.slots.flatten().to(self._device, torch.int32),
            torch.full((count,), BLOCK_TOKENS, dtype=torch.int32, device=self._device),
            shape.heads,
            shape.kv_heads,
            shape.dim,
            BLOCK_TOKENS,
            q_data_type=torch.bfloat16,
            kv_data_type=torch.bfloat16,
        )
        return partial(wrapper.run, self.queries(1), (k, v))


def _sdpa(kind: SDPBackend, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    with sdpa_kernel(kind):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
