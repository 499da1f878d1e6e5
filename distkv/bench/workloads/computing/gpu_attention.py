"""Attention of a batch on a GPU, for the Triton backend and for what a user could call instead.

Keys lie as they do in a serving instance: rBlocks of all layers of a model, so that what a layer reads of a block is
one piece of it. All work goes over the layers in turn, as a step does, so that no cache holds what a layer reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
FLASHINFER, FLASH_ATTENTION_3 = "FlashInfer", "FlashAttention-3"

COLD_BYTES = 256 << 20
"""Read or written before the same is met again, where memory is not the pool's: a few times what a GPU's L2 holds."""


@dataclass(frozen=True)
class Cells:
    """So many sequences of so many keys each."""

    sequences: int
    keys: int

    def __str__(self) -> str:
        return f"{self.sequences} x {self.keys:,}"


class PagedBatch:
    """bfloat16 keys of a batch in a pool of rBlocks in random order, and the same amount contiguous.

    layers: of every rBlock. All work that is made here is of every layer once; num_bytes says of how many bytes.
    """

    def __init__(self, shape: Shape, cells: Cells, device: torch.device, layers: int) -> None:
        self.shape, self.cells, self.layers, self._device = shape, cells, layers, device
        self._blocks = cells.keys // BLOCK_TOKENS
        size = (cells.sequences * self._blocks, layers, 2, shape.kv_heads, BLOCK_TOKENS * shape.dim)
        self._pool = torch.empty(size, dtype=torch.bfloat16, device=device).normal_()
        self.kvs = tuple(
            RowKv.of(self._pool[:, layer, 0], self._pool[:, layer, 1], shape.dim, BLOCK_TOKENS)
            for layer in range(layers)
        )
        order = torch.randperm(size[0], generator=torch.Generator().manual_seed(0))
        self.slots = order.view(cells.sequences, self._blocks)

    @staticmethod
    def layer_bytes(shape: Shape, cells: Cells) -> int:
        """Of K and V of one layer."""
        return 2 * cells.sequences * cells.keys * shape.kv_heads * shape.dim * torch.bfloat16.itemsize

    @property
    def num_bytes(self) -> int:
        """Of K and V of all layers."""
        return self._pool.nbytes

    def queries(self, rows: int) -> Tensor:
        """bfloat16 [sequences · rows, Hq, D], sequence by sequence."""
        count = self.cells.sequences * rows
        generator = torch.Generator().manual_seed(rows)
        return torch.randn(count, self.shape.heads, self.shape.dim, generator=generator).bfloat16().to(self._device)

    def ours(self, backend: Backend, rows: int) -> Callable[[], Any]:
        """Attention of the last `rows` tokens of each sequence."""
        count, keys = self.cells.sequences, self.cells.keys
        metadata = AttentionMetadata(
            tuple(range(i * rows, (i + 1) * rows) for i in range(count)),
            self._tables(),
            torch.arange(keys - rows, keys, device=self._device).repeat(count),
        )
        q, scale = self.queries(rows), self.shape.dim**-0.5
        return self._by_layers([partial(backend.attend, q, kv, metadata, scale) for kv in self.kvs])

    def copying(self) -> Callable[[], Any]:
        """Copies of what a layer has in its rBlocks, in the order of the sequences, to memory that no cache holds."""
        # Triton is an extra.
        from distkv.kernels.triton.copy import gather_blocks

        rows = self._pool.view(len(self._pool), self.layers, -1).view(torch.uint8)
        slots = self.slots.flatten().to(self._device)
        targets = [torch.empty_like(rows[:, 0]) for _ in range(self._cold)]
        return self._by_layers(
            [
                partial(gather_blocks, rows[:, layer], slots, targets[layer % len(targets)])
                for layer in range(self.layers)
            ]
        )

    def sdpa(self, rows: int) -> dict[str, Callable[[], Any]]:
        """torch's fused kernels that take this shape, over contiguous keys; causal for more than one row."""
        contiguous = [self._contiguous(kv) for kv in self.kvs[: self._cold]]
        q = self.queries(rows).view(self.cells.sequences, rows, self.shape.heads, self.shape.dim).transpose(1, 2)
        found: dict[str, Callable[[], Any]] = {}
        for name, kind in SDPA.items():
            works = [partial(_sdpa, kind, q, keys, values, rows > 1) for keys, values in contiguous]
            try:
                works[0]()
            except RuntimeError:  # it does not take such tensors, or is not there
                continue
            found[name] = self._by_layers(works)
        return found

    def libraries(self, rows: int) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
        """Other libraries over the same rBlocks, causal for more than one row, and why those that are missing are."""
        # Triton is an extra.
        from distkv.kernels.triton.attention import templates
        from distkv.kernels.triton.libraries.flash_attention3 import FlashAttention3
        from distkv.kernels.triton.libraries.flash_infer import FlashInfer
        from distkv.kernels.triton.libraries.pages import PagedAttention, Pages

        kinds: dict[str, Callable[..., PagedAttention]] = {FLASHINFER: FlashInfer, FLASH_ATTENTION_3: FlashAttention3}
        q, scale = self.queries(rows), self.shape.dim**-0.5
        shape = templates.Shape.of(q, self.kvs[0].k)
        pages = Pages.of([rows] * self.cells.sequences, self._tables())
        found: dict[str, Callable[[], Any]] = {}
        missing: dict[str, str] = {}
        for name, kind in kinds.items():
            try:
                attention = kind(pages, shape, scale, self._device)
                attention.run(q, self.kvs[0])
            except ImportError:
                missing[name] = "not installed"
            # Whatever a library does not take, or another version of it has changed, costs nothing but its figures.
            except Exception as error:
                missing[name] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            else:
                found[name] = self._by_layers([partial(attention.run, q, kv) for kv in self.kvs])
        return found, missing

    def _tables(self) -> tuple[BlockTable, ...]:
        starts = tuple(range(0, self.cells.keys, BLOCK_TOKENS))
        return tuple(BlockTable(tuple(slots), starts, self.cells.keys, BLOCK_TOKENS) for slots in self.slots.tolist())

    @property
    def _cold(self) -> int:
        """Layers whose keys and values no cache holds together."""
        return min(self.layers, -(-COLD_BYTES * self.layers // self.num_bytes))

    def _contiguous(self, kv: RowKv) -> tuple[Tensor, Tensor]:
        """K and V [sequences, Hkv, keys, D]."""
        slots = self.slots.to(self._device)
        keys, values = (half[slots].transpose(1, 2).flatten(2, 3) for half in (kv.k, kv.v))
        return keys, values

    def _by_layers(self, works: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
        """As many calls as there are layers, of these by turns; the result is the last one's."""

        def work() -> Any:
            for layer in range(self.layers):
                result = works[layer % len(works)]()
            return result

        return work


def _sdpa(kind: SDPBackend, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    with sdpa_kernel(kind):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
