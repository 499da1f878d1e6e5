"""A layer's new tokens, from its projection into the pool, in one kernel: norm, rotation and KV write."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from distkv.kernels.attention.layout import RowKv
from distkv.kernels.layer.fused_qkv import FusedQkv
from distkv.kernels.triton.casts import rounded

_NUM_WARPS = 2
_PROGRAM_PAIRS = 512
"""Pairs of numbers that are rotated together: a thread has 8 neighbours of each half of a head."""

_FP8_MAX = tl.constexpr(torch.finfo(torch.float8_e4m3fn).max)


def store_qkv(qkv: FusedQkv, kv: RowKv, slots: Tensor, offsets: Tensor) -> Tensor:
    """See distkv.kernels.Backend.store: `FusedQkv.rotated` and `RowKv.write`, rounded where they round.

    qkv.rows, cos and sin may be strided over tokens; D is even. K and V of tokens with a negative slot are stored
    nowhere: rows that only fill up a captured graph have it.
    """
    rows, dim = qkv.rows, qkv.head_dim
    q = torch.empty(len(rows), qkv.num_heads, dim, dtype=rows.dtype, device=rows.device)
    if not len(rows):
        return q
    half = triton.next_power_of_2(dim // 2)
    tile = max(1, _PROGRAM_PAIRS // half)
    q_tiles, kv_tiles = triton.cdiv(qkv.num_heads, tile), triton.cdiv(kv.kv_heads, tile)
    _store[(len(rows), q_tiles + kv_tiles)](
        rows,
        qkv.cos,
        qkv.sin,
        qkv.q_norm,
        qkv.k_norm,
        q,
        kv.k,
        kv.v,
        slots,
        offsets,
        rows.stride(0),
        qkv.cos.stride(0),
        qkv.sin.stride(0),
        kv.k.stride(0),
        qkv.eps,
        HEADS=qkv.num_heads,
        KV_HEADS=kv.kv_heads,
        D=dim,
        P=kv.block_tokens,
        Q_TILES=q_tiles,
        TILE=tile,
        HALF=half,
        num_warps=_NUM_WARPS,
        # A product and a sum are two roundings in torch.
        enable_fp_fusion=False,
    )
    return q


@triton.jit(do_not_specialize_on_alignment=["slots", "offsets"])
def _store(  # type: ignore[no-untyped-def]
    rows,
    cos,
    sin,
    q_norm,
    k_norm,
    q,
    k,
    v,
    slots,
    offsets,
    row_stride,
    cos_stride,
    sin_stride,
    slot_stride,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    P: tl.constexpr,
    Q_TILES: tl.constexpr,
    TILE: tl.constexpr,
    HALF: tl.constexpr,
):
    """A program finishes TILE query heads of a token, or as many key heads and their values.

    Heads are [TILE, 2, HALF]: number i of one half is rotated with number i of the other.
    """
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows += row * row_stride
    half, i = tl.arange(0, 2)[None, :, None], tl.arange(0, HALF)[None, None, :]
    place, other_place = half * (D // 2) + i, (1 - half) * (D // 2) + i
    is_number = i < D // 2
    # cos and sin are read once per head: one row of them would have to go to all threads by way of shared memory.
    same = tl.zeros([TILE, 1, 1], tl.int32)
    cos_values = tl.load(cos + row * cos_stride + same + place, mask=is_number, other=0.0).to(tl.float32)
    sin_values = tl.load(sin + row * sin_stride + same + place, mask=is_number, other=0.0).to(tl.float32)
    sin_values = tl.where(half == 0, -sin_values, sin_values)
    if tile < Q_TILES:
        head = (tile * TILE + tl.arange(0, TILE))[:, None, None]
        mask = (head < HEADS) & is_number
        x = _rotated(rows + head * D, place, other_place, mask, cos_values, sin_values, q_norm, same, eps, D)
        tl.store(q + (row * HEADS + head) * D + place, rounded(x, q.dtype.element_ty), mask=mask)
    else:
        head = ((tile - Q_TILES) * TILE + tl.arange(0, TILE))[:, None, None]
        slot = tl.load(slots + row)
        mask = (head < tl.where(slot >= 0, KV_HEADS, 0)) & is_number
        target = slot * slot_stride + tl.load(offsets + row) * D + head * (P * D) + place
        keys = rows + (HEADS + head) * D
        x = _rotated(keys, place, other_place, mask, cos_values, sin_values, k_norm, same, eps, D)
        value = tl.load(keys + KV_HEADS * D + place, mask=mask, other=0.0).to(tl.float32)
        dtype: tl.constexpr = k.dtype.element_ty
        if dtype == tl.float8e4nv:
            x = tl.clamp(x, -_FP8_MAX, _FP8_MAX, propagate_nan=tl.PropagateNan.ALL)
            value = tl.clamp(value, -_FP8_MAX, _FP8_MAX, propagate_nan=tl.PropagateNan.ALL)
        tl.store(k + target, rounded(x, dtype), mask=mask)
        tl.store(v + target, rounded(value, dtype), mask=mask)


@triton.jit
def _rotated(  # type: ignore[no-untyped-def]
    x, place, other_place, mask, cos_values, sin_values, gain, same, eps, D: tl.constexpr
):
    """Heads normed, if there is a gain, and rotated: float32 with numbers of x's type."""
    dtype: tl.constexpr = x.dtype.element_ty
    number = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
    other = tl.load(x + other_place, mask=mask, other=0.0).to(tl.float32)
    if gain is not None:
        square = tl.sum(tl.sum(number * number, 2), 1)[:, None, None]
        inverse = tl.rsqrt(square / D + eps)
        number = rounded(number * inverse, dtype).to(tl.float32) * tl.load(gain + same + place, mask=mask, other=0.0)
        other = rounded(other * inverse, dtype).to(tl.float32) * tl.load(
            gain + same + other_place, mask=mask, other=0.0
        )
        number, other = rounded(number, dtype).to(tl.float32), rounded(other, dtype).to(tl.float32)
    rotated = rounded(number * cos_values, dtype).to(tl.float32) + rounded(other * sin_values, dtype).to(tl.float32)
    return rounded(rotated, dtype).to(tl.float32)
