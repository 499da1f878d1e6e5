"""A layer's new tokens, from its projection into the pool, in one kernel: norm, rotation and KV write."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from distkv.kernels.heads import Heads
from distkv.kernels.layout import RowKv
from distkv.kernels.triton.casts import rounded

_NUM_WARPS = 2
_PROGRAM_PAIRS = 512
"""Pairs of numbers that are rotated together: a thread reads 8 neighbours of each half of a head."""

_FP8_MAX = tl.constexpr(torch.finfo(torch.float8_e4m3fn).max)


def store_heads(heads: Heads, kv: RowKv, slots: Tensor, offsets: Tensor) -> Tensor:
    """See distkv.kernels.Backend.store: `Heads.finished` and `RowKv.write`, rounded where they round.

    heads.rows, cos and sin may be strided over tokens; D is even. K and V of tokens with a negative slot are stored
    nowhere: rows that only fill up a captured graph have it. Checksums are not made here but of whole rBlocks, by
    `copy.block_checksums`: most rBlocks never move, and one that does is sealed long after its first token.
    """
    rows, dim = heads.rows, heads.head_dim
    q = torch.empty(len(rows), heads.num_heads, dim, dtype=rows.dtype, device=rows.device)
    if not len(rows):
        return q
    half = triton.next_power_of_2(dim // 2)
    tile = max(1, _PROGRAM_PAIRS // half)
    q_tiles, kv_tiles = triton.cdiv(heads.num_heads, tile), triton.cdiv(kv.kv_heads, tile)
    _store[(len(rows), q_tiles + kv_tiles)](
        rows,
        heads.cos,
        heads.sin,
        heads.q_norm,
        heads.k_norm,
        q,
        kv.k,
        kv.v,
        slots,
        offsets,
        rows.stride(0),
        heads.cos.stride(0),
        heads.sin.stride(0),
        kv.k.stride(0),
        heads.eps,
        HEADS=heads.num_heads,
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
    """A program finishes TILE query heads of a token, or as many key heads and their values."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows += row * row_stride
    cos += row * cos_stride
    sin += row * sin_stride
    if tile < Q_TILES:
        head = tile * TILE + tl.arange(0, TILE)
        first, second = _turned(rows, head, HEADS, cos, sin, q_norm, eps, D, HALF)
        _put(q + row * HEADS * D, head * D, head < HEADS, first, second, D, HALF)
    else:
        head = (tile - Q_TILES) * TILE + tl.arange(0, TILE)
        slot = tl.load(slots + row)
        place = slot * slot_stride + tl.load(offsets + row) * D
        is_stored = head < tl.where(slot >= 0, KV_HEADS, 0)
        first, second = _turned(rows + HEADS * D, head, KV_HEADS, cos, sin, k_norm, eps, D, HALF)
        _put(k + place, head * (P * D), is_stored, first, second, D, HALF)
        first, second = _halves(rows + (HEADS + KV_HEADS) * D, head, KV_HEADS, D, HALF)
        _put(v + place, head * (P * D), is_stored, first, second, D, HALF)


@triton.jit
def _turned(  # type: ignore[no-untyped-def]
    x, head, count, cos, sin, gain, eps, D: tl.constexpr, HALF: tl.constexpr
):
    """Both halves of some heads, normed if there is a gain, and rotated: float32 with numbers of x's type."""
    dtype: tl.constexpr = x.dtype.element_ty
    first, second = _halves(x, head, count, D, HALF)
    # Read once per head: a vector read once would have to go to all threads by way of shared memory.
    same = head * 0
    if gain is not None:
        square = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        inverse = tl.rsqrt(square / D + eps)[:, None]
        first_gain, second_gain = _halves(gain, same, 1, D, HALF)
        first = _to(first_gain * _to(first * inverse, dtype), dtype)
        second = _to(second_gain * _to(second * inverse, dtype), dtype)
    first_cos, second_cos = _halves(cos, same, 1, D, HALF)
    first_sin, second_sin = _halves(sin, same, 1, D, HALF)
    turned_first = _to(_to(first * first_cos, dtype) - _to(second * first_sin, dtype), dtype)
    turned_second = _to(_to(second * second_cos, dtype) + _to(first * second_sin, dtype), dtype)
    return turned_first, turned_second


@triton.jit
def _halves(x, head, count, D: tl.constexpr, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """float32 [TILE, HALF] twice, zeros behind the end."""
    d = tl.arange(0, HALF)
    place = (head * D)[:, None] + d[None, :]
    mask = (head < count)[:, None] & (d < D // 2)[None, :]
    first = tl.load(x + place, mask=mask, other=0.0)
    second = tl.load(x + D // 2 + place, mask=mask, other=0.0)
    return first.to(tl.float32), second.to(tl.float32)


@triton.jit
def _put(y, place, mask, first, second, D: tl.constexpr, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """Both halves of heads to their places; what float8 cannot hold becomes its largest."""
    dtype: tl.constexpr = y.dtype.element_ty
    if dtype == tl.float8e4nv:
        first = tl.clamp(first, -_FP8_MAX, _FP8_MAX, propagate_nan=tl.PropagateNan.ALL)
        second = tl.clamp(second, -_FP8_MAX, _FP8_MAX, propagate_nan=tl.PropagateNan.ALL)
    d = tl.arange(0, HALF)
    y += place[:, None] + d[None, :]
    mask = mask[:, None] & (d < D // 2)[None, :]
    tl.store(y, rounded(first, dtype), mask=mask)
    tl.store(y + D // 2, rounded(second, dtype), mask=mask)


@triton.jit
def _to(x, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """x rounded to the numbers of `dtype`."""
    return rounded(x, dtype).to(tl.float32)
