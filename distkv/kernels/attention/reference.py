"""Micro-attention as it is written down in README.md, in float64: what every backend is measured against."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from distkv.kernels.attention.block_table import BlockTable
from distkv.kernels.attention.merge import Partial, empty_partial


def micro_attention(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    blocks: BlockTable,
    q_positions: Tensor,
    scale: float,
    window: int | None = None,
    alibi: Tensor | None = None,
) -> Partial:
    """Attention of T queries over the keys in `blocks`, as a partial (000 §4.2).

    q: [T, Hq, D]. k_pool, v_pool: [slots, Hkv, P, D]; query head h reads KV head h // (Hq / Hkv).
    q_positions: int64 [T]. A query at position p attends to existing keys at positions ≤ p, and with a window also
    > p − window. alibi: [Hq], adds alibi[h] · (key position − p) to the scores of head h.

    Returns (out [T, Hq, D], lse [T, Hq]), here in float64, in backends in float32. lse is a natural log.
    A query without keys gives (0, −inf). Slots and keys outside that are never read into a result.
    """
    num_rows, num_heads, head_dim = q.shape
    group = num_heads // k_pool.shape[1]
    out, lse = empty_partial(num_rows, num_heads, head_dim, torch.float64)
    for row in range(num_rows):
        position = int(q_positions[row])
        first = 0 if window is None else position - window + 1
        keys = [
            (slot, offset, start + offset)
            for slot, start in zip(blocks.slots.tolist(), blocks.positions.tolist(), strict=True)
            for offset in range(blocks.block_tokens)
            if first <= start + offset <= position and start + offset < blocks.num_keys
        ]
        if not keys:
            continue
        for head in range(num_heads):
            k = torch.stack([k_pool[slot, head // group, offset] for slot, offset, _ in keys]).double()
            v = torch.stack([v_pool[slot, head // group, offset] for slot, offset, _ in keys]).double()
            scores = k @ q[row, head].double() * scale
            if alibi is not None:
                scores += float(alibi[head]) * torch.tensor([key_position - position for _, _, key_position in keys])
            m = scores.max()
            weights = torch.exp(scores - m)
            e = weights.sum()
            out[row, head] = weights @ v / e
            lse[row, head] = m + math.log(float(e))
    return out, lse
