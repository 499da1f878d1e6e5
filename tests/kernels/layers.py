"""Pools in the layout of the CPU backends."""

from __future__ import annotations

import torch
from torch import Tensor

from distkv.kernels import LayerKv


def layer_of(k: Tensor, v: Tensor) -> LayerKv:
    """k, v [slots, Hkv, P, D] as one layer of a larger pool; everything else there is NaN."""
    num_slots, kv_heads, block_tokens, dim = k.shape
    memory = torch.full((num_slots, 3, 2, kv_heads, block_tokens * dim), torch.nan, dtype=k.dtype)
    layer = LayerKv.of(memory[:, 1, 0], memory[:, 1, 1], dim, block_tokens)
    slots, offsets = torch.arange(num_slots).repeat_interleave(block_tokens), torch.arange(block_tokens)
    layer.write(slots, offsets.repeat(num_slots), k.transpose(1, 2).flatten(0, 1), v.transpose(1, 2).flatten(0, 1))
    return layer
