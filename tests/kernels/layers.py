"""Pools as backends want them."""

from __future__ import annotations

import torch
from torch import Tensor

from distkv.kernels import Backend, LayerKv


def layer_of(backend: Backend, k: Tensor, v: Tensor) -> LayerKv:
    """k, v [slots, Hkv, P, D] as one layer of a larger pool; everything else there is NaN."""
    num_slots, kv_heads, block_tokens, dim = k.shape
    memory = torch.full((num_slots, 3, 2, kv_heads, block_tokens * dim), torch.nan, dtype=k.dtype)
    layer = backend.layout.of(memory[:, 1, 0], memory[:, 1, 1], dim, block_tokens)
    slots, offsets = torch.arange(num_slots).repeat_interleave(block_tokens), torch.arange(block_tokens)
    layer.write(slots, offsets.repeat(num_slots), k.transpose(1, 2).flatten(0, 1), v.transpose(1, 2).flatten(0, 1))
    return layer
