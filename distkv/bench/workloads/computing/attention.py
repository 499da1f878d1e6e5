"""Micro-attention as a benchmark calls it: the same keys for every backend, and for torch's own kernel."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from distkv.kernels import AttentionMetadata, Backend, BlockTable, PanelKv, Partial
from distkv.kernels.cpu.calls.library import Native
from distkv.kernels.cpu.huge_pages import HugePages

BLOCK_TOKENS = 16
RANDOM_BYTES = 1 << 26
"""Larger pools repeat so many random bytes: their content does not matter to the time."""
STREAM_BYTES = 1 << 29


@dataclass(frozen=True)
class Shape:
    """Query heads, KV heads and head dim of a model."""

    heads: int
    kv_heads: int
    dim: int

    def __str__(self) -> str:
        return f"({self.heads}, {self.kv_heads}, {self.dim})"


class Keys:
    """`num_keys` keys of one sequence in a bfloat16 pool, in blocks of random order, and the same as torch wants them.

    contiguous: K and V [1, Hkv, S, D].
    """

    def __init__(self, shape: Shape, num_keys: int) -> None:
        self.shape, self.num_keys = shape, num_keys
        blocks = num_keys // BLOCK_TOKENS
        panel = BLOCK_TOKENS * shape.dim
        memory = _noise(blocks * 2 * shape.kv_heads * panel).view(blocks, 2, shape.kv_heads, panel)
        self.kv = PanelKv.of(memory[:, 0], memory[:, 1], shape.dim, BLOCK_TOKENS)
        slots = torch.randperm(blocks, generator=torch.Generator().manual_seed(0)).tolist()
        self.blocks = BlockTable(tuple(slots), tuple(range(0, num_keys, BLOCK_TOKENS)), num_keys, BLOCK_TOKENS)
        size = (1, shape.kv_heads, num_keys, shape.dim)
        self.contiguous = tuple(_noise(num_keys * shape.kv_heads * shape.dim).view(size) for _ in range(2))

    @property
    def num_bytes(self) -> int:
        """Of K and V."""
        return 2 * self.num_keys * self.shape.kv_heads * self.shape.dim * 2

    def queries(self, num_rows: int) -> Tensor:
        """bfloat16 [T, Hq, D]."""
        generator = torch.Generator().manual_seed(num_rows)
        return torch.randn(num_rows, self.shape.heads, self.shape.dim, generator=generator).bfloat16()

    def ours(self, backend: Backend, num_rows: int) -> Callable[[], Partial]:
        """Attention of the last `num_rows` tokens."""
        q, scale = self.queries(num_rows), self.shape.dim**-0.5
        positions = torch.arange(self.num_keys - num_rows, self.num_keys)
        metadata = AttentionMetadata((range(num_rows),), (self.blocks,), positions)
        return partial(backend.attend, q, self.kv, metadata, scale)

    def flash_decode(self) -> Callable[[], object]:
        """torch's fused kernel over contiguous keys, the query heads of a group as rows of one head."""
        k, v = self.contiguous
        q = self.queries(1).view(1, self.shape.kv_heads, -1, self.shape.dim)
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return partial(kernel, q, k, v, scale=self.shape.dim**-0.5)

    def flash_prefill(self, dtype: torch.dtype) -> Callable[[], object]:
        """The same for a whole prompt, KV heads repeated beforehand, in the dtype that is given."""
        repeats = self.shape.heads // self.shape.kv_heads
        k, v = (half.to(dtype).repeat_interleave(repeats, 1) for half in self.contiguous)
        q = self.queries(self.num_keys).transpose(0, 1)[None].to(dtype).contiguous()
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return partial(kernel, q, k, v, is_causal=True, scale=self.shape.dim**-0.5)


def merging(backend: Backend, shape: Shape, count: int) -> Callable[[], Partial]:
    """Merging `count` partials of one token."""
    partials = [(torch.randn(1, shape.heads, shape.dim), torch.randn(1, shape.heads)) for _ in range(count)]
    return partial(backend.merge, partials)


def streaming(native: Native | None) -> Callable[[], object]:
    """Reading STREAM_BYTES once, in huge pages as weights, with the threads that compute."""
    data = HugePages().take(STREAM_BYTES).view(torch.float32).zero_()  # written, or there would be no pages
    return data.sum if native is None else partial(_stream, native, data)


def rate(work: Callable[[], object], amount: float, case: str, repeats: int = 1) -> Mapping[str, float]:
    """`amount` per call over the time of a call; what `alternate` wants of a variant."""
    started_s = time.perf_counter()
    for _ in range(repeats):
        work()
    return {case: amount * repeats / (time.perf_counter() - started_s)}


def _stream(native: Native, data: Tensor) -> float:
    return float(native.stream(data.data_ptr(), data.numel()))


def _noise(count: int) -> Tensor:
    """bfloat16 [count]; the numbers repeat after a while."""
    chunk = torch.randn(min(count, RANDOM_BYTES // 2), generator=torch.Generator().manual_seed(count)).bfloat16()
    return chunk.repeat(-(-count // len(chunk)))[:count]
