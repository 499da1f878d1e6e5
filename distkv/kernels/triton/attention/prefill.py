"""Micro-attention of many query rows per entry over paged keys, with lse: prefill chunks, and queries of peers.

A program takes BLOCK_M pairs of a query row and a head of one group, and reads the keys that any of them sees once, in
tiles of BLOCK_N. Only tiles at the window's edge, at the diagonal and at the last key are masked. Where there are too
few pairs to fill the device, the keys too are divided between programs, and a second kernel merges.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from distkv.kernels.triton.attention.prefill_tiles import Tiles, device_limits, key_splits, prefill_tiles
from distkv.kernels.triton.attention.templates import Shape
from distkv.kernels.triton.casts import DOT_TYPES, widened
from distkv.kernels.triton.metadata import Column, DeviceMetadata, keys_before

_LOG2_E = tl.constexpr(math.log2(math.e))
_LN_2 = tl.constexpr(math.log(2))
_FAR = tl.constexpr(1 << 30)
"""A position that no query has."""

_COLUMNS = tl.constexpr(len(Column))
_FIRST_BLOCK = tl.constexpr(int(Column.FIRST_BLOCK))
_NUM_BLOCKS = tl.constexpr(int(Column.NUM_BLOCKS))
_NUM_KEYS = tl.constexpr(int(Column.NUM_KEYS))
_FIRST_ROW = tl.constexpr(int(Column.FIRST_ROW))
_NUM_ROWS = tl.constexpr(int(Column.NUM_ROWS))
_OUT_ROW = tl.constexpr(int(Column.OUT_ROW))
_FIRST_POSITION = tl.constexpr(int(Column.FIRST_POSITION))
_GAPS = tl.constexpr(int(Column.GAPS))

_MERGED_PAIRS = 16


def prefill_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    metadata: DeviceMetadata,
    entries: Tensor,
    max_rows: int,
    out: Tensor,
    lse: Tensor,
    scale: float,
    window: int | None = None,
    alibi: Tensor | None = None,
    *,
    tiles: Tiles | None = None,
    splits: int | None = None,
) -> None:
    """Attention of the rows of some entries over their keys, written to their rows of out and lse.

    q: [N, Hq, D]; the numbers of a row lie without gaps. k, v: [slots, Hkv, P, D], strided alike over slots and
    without gaps inside a slot. entries: int32 [E'] on the device, which entries of the metadata; max_rows: the rows of
    the longest of them. out: float32 [R, Hq, D]; lse: float32 [R, Hq], natural log. window, alibi: see
    `reference.micro_attention`; alibi is float32 [Hq]. tiles: measured ones; None chooses. splits: None chooses.

    Raises ValueError for a scale that is not positive: the largest score times another would not be the peak.
    """
    if scale <= 0:
        raise ValueError(f"expected a positive scale, got {scale}")
    shape = Shape.of(q, k)
    assert k.stride(0) == v.stride(0)
    assert q.stride()[1:] == (shape.head_dim, 1)
    group = shape.heads // shape.kv_heads
    num_sms, shared_bytes = device_limits(q.device)
    if tiles is None:
        tiles = prefill_tiles(shape, max_rows * group, alibi is not None, shared_bytes)
    grid = (triton.cdiv(max_rows * group, tiles.rows), shape.kv_heads, len(entries))
    if splits is None:
        splits = key_splits(math.prod(grid), num_sms * (8 // tiles.num_warps), tiles.keys, metadata)
    common = dict(HEADS=shape.heads, D=shape.head_dim, BLOCK_D=triton.next_power_of_2(max(shape.head_dim, 16)))
    part_out, part_lse = out, lse
    if splits > 1:
        part_out = torch.empty(splits, metadata.num_out_rows, *out.shape[1:], dtype=out.dtype, device=out.device)
        part_lse = torch.empty(part_out.shape[:-1], dtype=lse.dtype, device=lse.device)
    _prefill[(grid[0] * splits, *grid[1:])](
        q,
        k,
        v,
        part_out,
        part_lse,
        metadata.slots,
        metadata.starts,
        metadata.entries,
        metadata.positions,
        entries,
        alibi,
        scale * _LOG2_E.value,
        window or 0,
        q.stride(0),
        k.stride(0),
        splits,
        metadata.num_out_rows,
        KV_HEADS=shape.kv_heads,
        P=shape.block_tokens,
        WINDOWED=window is not None,
        DOT=DOT_TYPES[shape.dot_dtype],
        BLOCK_M=tiles.rows,
        BLOCK_N=tiles.keys,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
        **common,
    )
    if splits > 1:
        _merge_splits[(triton.cdiv(max_rows * shape.heads, _MERGED_PAIRS), len(entries))](
            part_out, part_lse, out, lse, metadata.entries, entries, splits, metadata.num_out_rows,
            PAIRS=_MERGED_PAIRS, **common,
        )  # fmt: skip


@triton.jit(
    do_not_specialize=["window", "splits", "num_out_rows"],
    do_not_specialize_on_alignment=["lse", "slots", "starts", "entries", "positions", "which"],
)
def _prefill(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    out,
    lse,
    slots,
    starts,
    entries,
    positions,
    which,
    alibi,
    scale,
    window,
    q_stride,
    slot_stride,
    splits,
    num_out_rows,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    P: tl.constexpr,
    WINDOWED: tl.constexpr,
    DOT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """scale: of the scores, with log2 e folded in, so that exponentials are powers of 2."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    split = tl.program_id(0) % splits
    # The last rows see most keys: they go first, so that no long program starts when the others end.
    first_pair = (tl.num_programs(0) - 1 - tl.program_id(0)) // splits * BLOCK_M
    kv_head = tl.program_id(1)
    entry = entries + tl.load(which + tl.program_id(2)) * _COLUMNS
    num_rows = tl.load(entry + _NUM_ROWS).to(tl.int32)
    if first_pair >= num_rows * GROUP:
        return
    pair = first_pair + tl.arange(0, BLOCK_M)
    row, head = pair // GROUP, kv_head * GROUP + pair % GROUP
    is_row = row < num_rows
    q_row = tl.load(entry + _FIRST_ROW) + row
    position = (tl.load(positions + q_row, mask=is_row, other=0) - tl.load(entry + _FIRST_POSITION)).to(tl.int32)
    lowest = tl.min(tl.where(is_row, position, _FAR), 0)
    highest = tl.max(tl.where(is_row, position, -_FAR), 0)

    first_block = tl.load(entry + _FIRST_BLOCK)
    slots += first_block
    starts += first_block
    num_blocks = tl.load(entry + _NUM_BLOCKS).to(tl.int32)
    num_keys = tl.load(entry + _NUM_KEYS).to(tl.int32)
    gaps = tl.load(entry + _GAPS).to(tl.int32)
    # Some row sees keys [seen, seen_end); every row sees keys [free, free_end).
    seen_end = keys_before(starts, num_blocks, num_keys, gaps, highest + 1, P)
    free_end = keys_before(starts, num_blocks, num_keys, gaps, lowest + 1, P)
    seen, free = 0, 0
    if WINDOWED:
        seen = keys_before(starts, num_blocks, num_keys, gaps, lowest - window + 1, P)
        free = keys_before(starts, num_blocks, num_keys, gaps, highest - window + 1, P)
    start = seen // BLOCK_N * BLOCK_N
    share = tl.cdiv(tl.cdiv(seen_end - start, BLOCK_N), splits) * BLOCK_N
    start += split * share
    end = tl.minimum(start + share, seen_end)

    d = tl.arange(0, BLOCK_D)
    is_query = is_row[:, None] & (d < D)[None, :]
    queries = tl.load(q + (q_row * q_stride + head * D)[:, None] + d[None, :], mask=is_query, other=0.0).to(DOT)
    if alibi is not None:
        slope = tl.load(alibi + head, mask=is_row, other=0.0) * _LOG2_E
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    k += kv_head * P * D
    v += kv_head * P * D
    n = tl.arange(0, BLOCK_N)
    # Slots are read one tile ahead: if a tile waited for its own, the compiler would fetch keys half as far ahead.
    slot = tl.load(slots + (start + n) // P, mask=start + n < end, other=0)
    for at in tl.range(start, end, BLOCK_N):
        key = at + n
        is_key = key < end
        if WINDOWED:
            is_key = is_key & (key >= seen)
        is_number = is_key[:, None]
        if D != BLOCK_D:
            is_number = is_number & (d < D)[None, :]
        place = (slot.to(tl.int64) * slot_stride + key % P * D)[:, None] + d[None, :]
        # What lies behind the last key may be NaN: 0 · NaN must not reach a sum of values.
        k_tile = tl.load(k + place, mask=is_number, other=0.0)
        v_tile = tl.load(v + place, mask=is_number, other=0.0)
        slot = tl.load(slots + (key + BLOCK_N) // P, mask=key + BLOCK_N < end, other=0)
        scores = tl.dot(queries, tl.trans(widened(k_tile, DOT)), input_precision="ieee")
        factor = scale
        if alibi is not None:
            key_position = tl.load(starts + key // P, mask=is_key, other=0) + key % P
            scores = scores * scale + slope[:, None] * (key_position[None, :] - position[:, None])
            factor = 1.0
        if (at < free) | (at + BLOCK_N > free_end):
            key_position = tl.load(starts + key // P, mask=is_key, other=_FAR) + key % P
            is_seen = key_position[None, :] <= position[:, None]
            if WINDOWED:
                is_seen = is_seen & (key_position[None, :] > (position - window)[:, None])
            scores = tl.where(is_seen, scores, float("-inf"))
        peak_before = peak
        peak = tl.maximum(peak, tl.max(scores, 1) * factor)
        # Rows that have seen no key yet have no peak; any number makes their exponentials 0.
        number = tl.where(peak == float("-inf"), 0.0, peak)
        weights = tl.exp2(scores * factor - number[:, None])
        decay = tl.exp2(peak_before - number)
        total = total * decay + tl.sum(weights, 1)
        acc = tl.dot(weights.to(DOT), widened(v_tile, DOT), acc * decay[:, None], input_precision="ieee")

    # A row without keys has total 0 and peak -inf; one of scores that are no numbers has no total, and no lse.
    total = tl.where(total == 0, 1.0, total)
    out_row = split.to(tl.int64) * num_out_rows + tl.load(entry + _OUT_ROW) + row
    target = out_row * HEADS + head
    tl.store(out + target[:, None] * D + d[None, :], acc / total[:, None], mask=is_query)
    tl.store(lse + target, (peak + tl.log2(total)) * _LN_2, mask=is_row)


@triton.jit(
    do_not_specialize=["splits", "num_out_rows"], do_not_specialize_on_alignment=["part_lse", "lse", "entries", "which"]
)
def _merge_splits(  # type: ignore[no-untyped-def]
    part_out,
    part_lse,
    out,
    lse,
    entries,
    which,
    splits,
    num_out_rows,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """ScaleReduce of part_out [splits, num_out_rows, HEADS, D] and part_lse, for some pairs of row and head."""
    entry = entries + tl.load(which + tl.program_id(1)) * _COLUMNS
    pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    is_pair = pair < tl.load(entry + _NUM_ROWS) * HEADS
    place = tl.load(entry + _OUT_ROW) * HEADS + pair
    d = tl.arange(0, BLOCK_D)
    is_number = is_pair[:, None] & (d < D)[None, :]
    num_pairs = num_out_rows.to(tl.int64) * HEADS
    peak = tl.full([PAIRS], float("-inf"), tl.float32)
    for split in tl.range(0, splits, num_stages=4):
        peak = tl.maximum(peak, tl.load(part_lse + split * num_pairs + place, mask=is_pair, other=float("-inf")))
    number = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.zeros([PAIRS], tl.float32)
    acc = tl.zeros([PAIRS, BLOCK_D], tl.float32)
    for split in tl.range(0, splits, num_stages=4):
        part = split * num_pairs + place
        weight = tl.exp2((tl.load(part_lse + part, mask=is_pair, other=float("-inf")) - number) * _LOG2_E)
        acc += weight[:, None] * tl.load(part_out + part[:, None] * D + d[None, :], mask=is_number, other=0.0)
        total += weight
    # As in `_prefill`.
    total = tl.where(total == 0, 1.0, total)
    tl.store(out + place[:, None] * D + d[None, :], acc / total[:, None], mask=is_number)
    tl.store(lse + place, peak + tl.log2(total) * _LN_2, mask=is_pair)
