"""Pools as backends want them."""

from __future__ import annotations

import torch
from torch import Tensor

from distkv.kernels import Backend, BlockTable, LayerKv


def device_of(backend: Backend) -> torch.device:
    """Where the tensors of a call lie."""
    return torch.device("cuda" if backend.name == "triton" and torch.cuda.is_available() else "cpu")


def layer_of(backend: Backend, k: Tensor, v: Tensor) -> LayerKv:
    """k, v [slots, Hkv, P, D] as one layer of a larger pool on the backend's device; everything else there is NaN."""
    num_slots, kv_heads, block_tokens, dim = k.shape
    memory = torch.full((num_slots, 3, 2, kv_heads, block_tokens * dim), torch.nan, device=device_of(backend))
    memory = memory.to(k.dtype)
    layer = backend.layout.of(memory[:, 1, 0], memory[:, 1, 1], dim, block_tokens)
    slots, offsets = torch.arange(num_slots).repeat_interleave(block_tokens), torch.arange(block_tokens)
    rows = (half.to(memory.device).transpose(1, 2).flatten(0, 1) for half in (k, v))
    layer.write(slots, offsets.repeat(num_slots), *rows)
    return layer


def poisoned_pool(
    num_slots: int, kv_heads: int, block_tokens: int, dim: int, blocks: BlockTable, dtype: torch.dtype, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """K and V [slots, Hkv, P, D] in which only existing keys of `blocks` are numbers."""
    generator = torch.Generator().manual_seed(seed)
    k, v = (torch.full((num_slots, kv_heads, block_tokens, dim), torch.nan) for _ in range(2))
    for slot, start in zip(blocks.slots.tolist(), blocks.positions.tolist(), strict=True):
        exist = max(0, min(block_tokens, blocks.num_keys - start))
        for half in (k, v):
            half[slot, :, :exist] = torch.randn(kv_heads, exist, dim, generator=generator)
    return k.to(dtype), v.to(dtype)
