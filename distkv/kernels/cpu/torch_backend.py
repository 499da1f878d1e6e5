"""Micro-attention in plain torch, for any CPU.

Keys are taken in tiles that stay in the cache, each copied once into head-major float32; the query heads of a group
read the same copy. Only the ends of the key range can need a mask: the keys before the lowest query position are seen
by all and go through torch's fused kernel; for one query there are no others. Queries are taken in tiles that bound
the score matrix of the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from distkv.kernels.attention.attention_metadata import AttentionMetadata
from distkv.kernels.attention.block_table import BlockTable
from distkv.kernels.attention.layout import LayerKv, PanelKv
from distkv.kernels.attention.merge import Partial, empty_partial, merge
from distkv.kernels.backend import Backend
from distkv.kernels.layer.fused_qkv import FusedQkv

_TILE_KEY_ELEMENTS = 1 << 20  # K of one tile: 4 MiB of float32
_TILE_SCORES = 1 << 20  # scores of one tile: 4 MiB of float32


class TorchBackend(Backend):
    """A Backend that needs nothing but torch."""

    name = "torch"
    layout: type[LayerKv] = PanelKv

    def attend(
        self,
        q: Tensor,
        kv: LayerKv,
        metadata: AttentionMetadata,
        scale: float,
        window: int | None = None,
        alibi: Tensor | None = None,
        *,
        serving: bool = False,
    ) -> Partial:
        """See Backend."""
        parts = [
            _attend_blocks(
                q[rows.start : rows.stop], kv, blocks, metadata.positions[rows.start : rows.stop], scale, window, alibi
            )
            for rows, blocks in zip(metadata.rows, metadata.block_tables, strict=True)
        ]
        if len(parts) == 1:
            return parts[0]
        parts.append(empty_partial(0, *q.shape[1:]))
        return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts])

    def merge(self, partials: Sequence[Partial]) -> Partial:
        """See Backend."""
        return merge(partials)

    def store(self, qkv: FusedQkv, kv: LayerKv, slots: Tensor, offsets: Tensor) -> Tensor:
        """See Backend."""
        q, k, v = qkv.rotated()
        kv.write(slots, offsets, k, v)
        return q


def _attend_blocks(
    q: Tensor,
    kv: LayerKv,
    blocks: BlockTable,
    q_positions: Tensor,
    scale: float,
    window: int | None,
    alibi: Tensor | None,
) -> Partial:
    num_rows, num_heads, head_dim = q.shape
    if num_rows == 0:
        return empty_partial(0, num_heads, head_dim)
    low, high = _bounds(q_positions)
    blocks = blocks.within(0 if window is None else low - window + 1, high + 1)
    q = q.float() * scale
    total: Partial | None = None
    for tile in blocks.tiles(max(1, _TILE_KEY_ELEMENTS // (kv.kv_heads * kv.block_tokens * head_dim))):
        slots = _slots_of(tile)
        k, v = _head_major(kv.keys(slots)), _head_major(kv.values(slots))
        step = max(1, _TILE_SCORES // (num_heads * k.shape[1]))
        parts = [
            _attend(q[row : row + step], q_positions[row : row + step], k, v, tile, window, alibi)
            for row in range(0, num_rows, step)
        ]
        part = parts[0] if len(parts) == 1 else (torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts]))
        total = part if total is None else merge((total, part))
    return empty_partial(num_rows, num_heads, head_dim) if total is None else total


def _slots_of(blocks: BlockTable) -> Tensor | slice:
    """A slice, which needs no copy, where the slots of these blocks, at least one, follow each other."""
    first, last = int(blocks.slots[0]), int(blocks.slots[-1])
    if last - first + 1 == len(blocks) and bool((np.diff(blocks.slots) == 1).all()):
        return slice(first, last + 1)
    return torch.from_numpy(blocks.slots)


def _bounds(q_positions: Tensor) -> tuple[int, int]:
    if len(q_positions) == 1:
        position = int(q_positions[0])
        return position, position
    low, high = torch.aminmax(q_positions)
    return int(low), int(high)


def _head_major(blocks: Tensor) -> Tensor:
    """[B, Hkv, P, D] → float32 [Hkv, B·P, D]."""
    heads_first = blocks.transpose(0, 1)
    return torch.empty(heads_first.shape).copy_(heads_first).flatten(1, 2)


def _attend(
    q: Tensor, q_positions: Tensor, k: Tensor, v: Tensor, tile: BlockTable, window: int | None, alibi: Tensor | None
) -> Partial:
    """One tile of queries, already scaled, over one tile of keys. q: float32 [T, Hq, D]. k, v: float32 [Hkv, S, D]."""
    num_rows, num_heads, head_dim = q.shape
    kv_heads = k.shape[0]
    low, high = _bounds(q_positions)
    last = tile.keys_before(high + 1)  # no query sees index ≥ last
    first = 0 if window is None else tile.keys_before(low - window + 1)  # or < first
    if last <= first:
        return empty_partial(num_rows, num_heads, head_dim)
    # Every query sees [free, masked) as it is; at the ends it depends on the query, and with ALiBi everywhere.
    free = (
        last
        if alibi is not None
        else first
        if window is None
        else min(max(first, tile.keys_before(high - window + 1)), last)
    )
    masked = min(max(free, tile.keys_before(low + 1)), last)
    by_group = q.view(num_rows, kv_heads, -1, head_dim).permute(1, 2, 0, 3).reshape(kv_heads, -1, head_dim)
    parts = []
    if free < masked:
        parts.append(_unmasked(by_group, k[:, free:masked], v[:, free:masked]))
    for start, end in ((first, free), (masked, last)):
        if start < end:
            back = q_positions[:, None] - torch.from_numpy(tile.key_positions(start, end))[None]
            bias = None if alibi is None else -alibi.view(kv_heads, -1, 1, 1) * back
            parts.append(_masked(by_group, k[:, start:end], v[:, start:end], _hidden(back, window), bias))
    out, lse = merge(parts)
    return (
        out.view(kv_heads, -1, num_rows, head_dim).permute(2, 0, 1, 3).reshape(num_rows, num_heads, head_dim),
        lse.view(kv_heads, -1, num_rows).permute(2, 0, 1).reshape(num_rows, num_heads),
    )


def _unmasked(q: Tensor, k: Tensor, v: Tensor) -> Partial:
    """All queries over all keys, by torch's fused kernel. q: [Hkv, G·T, D]. Returns out [Hkv, G·T, D], lse."""
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q[None], k[None], v[None], scale=1.0)
    # It has (0, 0) for a row whose scores are all no numbers: one of them makes it what it is.
    return out[0].add_(torch.bmm(q, k[:, :1].transpose(1, 2)).mul_(0.0)), lse[0]


def _masked(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, bias: Tensor | None) -> Partial:
    """As `_unmasked`, but row t of every group does not see the keys that `hidden` [T, S] marks.

    bias: added to the scores, [Hkv, G, T, S].
    """
    scores = torch.bmm(q, k.transpose(1, 2))
    by_row = scores.view(q.shape[0], -1, *hidden.shape)
    if bias is not None:
        by_row += bias
    by_row.masked_fill_(hidden, -torch.inf)
    # A row may see none of these keys: a finite peak makes its exponentials, and so its output, 0.
    peak = scores.amax(-1, keepdim=True).clamp_min_(torch.finfo(torch.float32).min)
    weights = scores.sub_(peak).exp_()
    total = weights.sum(-1, keepdim=True)
    out = torch.bmm(weights, v).div_(total.clamp_min(1.0))
    return out, peak.add_(total.log_()).squeeze(-1)


def _hidden(back: Tensor, window: int | None) -> Tensor:
    """bool [T, S]: keys after the query, or too far before it. back: int64 [T, S], how far a key is before a query."""
    return back < 0 if window is None else (back < 0) | (back >= window)
