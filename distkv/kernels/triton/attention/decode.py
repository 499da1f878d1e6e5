"""Paged micro-attention of single queries: one pass over K and V serves all query heads of a group.

A work item is one query row and one run of its keys; a program computes it for one KV head. Items of all sequences of
a call, however long each is, are one launch: of a program for each, or of as many as the device runs at a time, which
walk through them. A row that is one item is written as it is; partials of the others are
merged by whichever program of the row ends last (split), or by a second kernel (deep split).
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

from distkv.kernels.triton.attention.decode_plan import DecodePlan
from distkv.kernels.triton.attention.templates import Template
from distkv.kernels.triton.casts import rounded, widened
from distkv.kernels.triton.merge import reduce_parts
from distkv.kernels.triton.metadata import DeviceMetadata, keys_before

_LOG2_E = tl.constexpr(math.log2(math.e))
_LN_2 = tl.constexpr(math.log(2))
_REDUCED_AT_ONCE = 32


def decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    metadata: DeviceMetadata,
    plan: DecodePlan,
    out: Tensor,
    lse: Tensor,
    scale: float,
    window: int | None = None,
    alibi: Tensor | None = None,
    into: Tensor | None = None,
) -> None:
    """Attend with the rows of `plan`; see distkv.kernels.Backend for what is computed.

    q: [N, Hq, D], rows may be strided. k, v: [slots, Hkv, P, D], strided alike over slots. out: float32
    [R + parts, Hq, D] and lse: float32 [R + parts, Hq], where R = metadata.num_out_rows and parts = plan.num_parts: the
    plan's rows get their results, rows from R on are scratch. into: [R, Hq, D] of any type gets the results instead,
    rounded, and no row has an lse; out and lse are scratch then, and R is 0.
    """
    assert k.stride(0) == v.stride(0)
    assert q.stride()[1:] == (plan.shape.head_dim, 1)
    _decode_kernel[plan.grid,](
        q,
        k,
        v,
        out,
        lse,
        into,
        plan.items,
        plan.counters,
        metadata.slots,
        metadata.starts,
        metadata.positions,
        alibi,
        scale * _LOG2_E.value,
        q.stride(0),
        k.stride(0),
        window or 2**31 - 1,
        plan.num_programs,
        **plan.heads,
        **plan.constants,
    )
    if plan.template is Template.DEEP_SPLIT:
        _reduce_kernel[plan.num_split_rows * plan.shape.heads,](
            out, lse, into, plan.split_rows, PARTS=_REDUCED_AT_ONCE, num_warps=4, **plan.heads
        )


@triton.jit(
    do_not_specialize=["window", "num_programs"],
    do_not_specialize_on_alignment=["lse", "items", "counters", "slots", "starts", "positions"],
)
def _decode_kernel(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    out,
    lse,
    into,
    items,
    counters,
    slots,
    starts,
    positions,
    alibi,
    scale,
    q_stride,
    slot_stride,
    window,
    num_programs,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    DIM: tl.constexpr,
    P: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    PROGRAMS: tl.constexpr,
    TILE: tl.constexpr,
    DOT: tl.constexpr,
    FUSED: tl.constexpr,
    MERGED_HEADS: tl.constexpr,
    MERGED_PARTS: tl.constexpr,
    STAGES: tl.constexpr,
    PERSISTENT: tl.constexpr,
):
    """num_programs: each a share of an item. PERSISTENT: those of the grid walk through them; else each is one."""
    if PERSISTENT:
        for program in tl.range(tl.program_id(0), num_programs, tl.num_programs(0)):
            _attend_item(
                program, q, k, v, out, lse, into, items, counters, slots, starts, positions, alibi, scale, q_stride,
                slot_stride, window, HEADS, KV_HEADS, D, DIM, P, HEAD_TILE, PROGRAMS, TILE, DOT, FUSED,
                MERGED_HEADS, MERGED_PARTS, STAGES
            )  # fmt: skip
    else:
        program = tl.program_id(0)
        # Of an item of no parts, which is nobody's, this is all: a captured launch may have more of these than others.
        if tl.load(items + program // PROGRAMS * 12 + 8) > 0:
            _attend_item(
                program, q, k, v, out, lse, into, items, counters, slots, starts, positions, alibi, scale, q_stride,
                slot_stride, window, HEADS, KV_HEADS, D, DIM, P, HEAD_TILE, PROGRAMS, TILE, DOT, FUSED,
                MERGED_HEADS, MERGED_PARTS, STAGES
            )  # fmt: skip


@triton.jit
def _attend_item(  # type: ignore[no-untyped-def]
    program,
    q,
    k,
    v,
    out,
    lse,
    into,
    items,
    counters,
    slots,
    starts,
    positions,
    alibi,
    scale,
    q_stride,
    slot_stride,
    window,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    DIM: tl.constexpr,
    P: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    PROGRAMS: tl.constexpr,
    TILE: tl.constexpr,
    DOT: tl.constexpr,
    FUSED: tl.constexpr,
    MERGED_HEADS: tl.constexpr,
    MERGED_PARTS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """program: of num_programs, those of one item follow each other. scale: of the scores, with log2 e folded in, so
    that exponentials are powers of 2. items: DecodePlan's; one of no parts is nobody's: it fills up the launch of a
    captured graph. PROGRAMS: of an item."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    TILES: tl.constexpr = PROGRAMS // KV_HEADS
    tile = program % PROGRAMS
    kv_head = tile // TILES
    first_head = kv_head * GROUP + tile % TILES * HEAD_TILE
    # In the order of plan.Item.
    item = items + program // PROGRAMS * 12
    first_block = tl.load(item)
    num_blocks = tl.load(item + 1).to(tl.int32)
    num_keys = tl.load(item + 2).to(tl.int32)
    first_position = tl.load(item + 3)
    gaps = tl.load(item + 4)
    row = tl.load(item + 5)
    out_row = tl.load(item + 6)
    part = tl.load(item + 7).to(tl.int32)
    num_parts = tl.load(item + 8).to(tl.int32)
    first_part = tl.load(item + 9)
    counter = counters + tl.load(item + 10) * PROGRAMS + tile
    keys_per_item = tl.load(item + 11).to(tl.int32)
    last_head = tl.where(num_parts > 0, tl.minimum(first_head + HEAD_TILE, (kv_head + 1) * GROUP), 0)
    slots += first_block
    starts += first_block

    # The keys this row sees are one range of indices; this program takes its share of it.
    position = tl.load(positions + row) - first_position
    last = keys_before(starts, num_blocks, num_keys, gaps, position + 1, P)
    first = keys_before(starts, num_blocks, num_keys, gaps, position + 1 - window, P) + part * keys_per_item
    last = tl.minimum(last, first + keys_per_item)

    head = first_head + tl.arange(0, HEAD_TILE)
    dim = tl.arange(0, DIM)
    is_head, is_dim = head < last_head, dim < D
    is_query = is_head[:, None] & is_dim[None, :]
    queries = tl.load(q + row * q_stride + head[:, None] * D + dim[None, :], mask=is_query, other=0.0).to(DOT)
    if alibi is not None:
        slope = tl.load(alibi + head, mask=is_head, other=0.0) * _LOG2_E

    peak = tl.full([HEAD_TILE], -float("inf"), tl.float32)
    total = tl.zeros([HEAD_TILE], tl.float32)
    values = tl.zeros([HEAD_TILE, DIM], tl.float32)
    index = first + tl.arange(0, TILE)
    slot = tl.load(slots + index // P, mask=index < last, other=0)
    for base in tl.range(first, last, TILE, num_stages=STAGES):
        index = base + tl.arange(0, TILE)
        is_key = index < last
        where = (slot.to(tl.int64) * slot_stride + kv_head * (P * D) + index % P * D)[:, None] + dim[None, :]
        # A tile ahead: loads of keys and values that need no other load first can run several tiles ahead.
        slot = tl.load(slots + (index + TILE) // P, mask=index + TILE < last, other=0)
        # What lies behind the last key may be NaN: 0 · NaN must not reach the sum of values.
        is_element = is_key[:, None] & is_dim[None, :]
        key = tl.load(k + where, mask=is_element, other=0.0)
        value = tl.load(v + where, mask=is_element, other=0.0)
        if k.dtype.element_ty == tl.float8e4nv:
            key, value = widened(key, DOT), widened(value, DOT)
        scores = tl.dot(queries, tl.trans(key.to(DOT)), input_precision="ieee") * scale
        if alibi is not None:
            start = tl.load(starts + index // P, mask=is_key, other=0)
            scores += slope[:, None] * (start + index % P - position).to(tl.float32)[None, :]
        scores = tl.where(is_key[None, :], scores, -float("inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        weights = tl.exp2(scores - new_peak[:, None])
        decay = tl.exp2(peak - new_peak)
        total = total * decay + tl.sum(weights, 1)
        values = tl.dot(weights.to(DOT), value.to(DOT), values * decay[:, None], input_precision="ieee")
        peak = new_peak

    # A row without keys has total 0 and peak -inf; one of scores that are no numbers has no total, and no lse.
    total = tl.where(total == 0, 1.0, total)
    # Partials lie behind the results.
    if into is not None:
        whole = head < tl.where(num_parts == 1, last_head, 0)
        place = (out_row * HEADS + head)[:, None] * D + dim[None, :]
        rows = rounded(values / total[:, None], into.dtype.element_ty)
        tl.store(into + place, rows, mask=whole[:, None] & is_dim[None, :])
        is_head = head < tl.where(num_parts > 1, last_head, 0)
        is_query = is_head[:, None] & is_dim[None, :]
    target = tl.where(num_parts == 1, out_row, first_part + part) * HEADS + head
    tl.store(out + target[:, None] * D + dim[None, :], values / total[:, None], mask=is_query)
    tl.store(lse + target, (peak + tl.log2(total)) * _LN_2, mask=is_head)

    if FUSED and num_parts > 1:
        # All threads have stored before one counts, and whoever counts last sees what all have stored.
        tl.debug_barrier()
        if tl.atomic_add(counter, 1, sem="acq_rel") == num_parts - 1:
            # The next layer's launch counts from 0 again.
            tl.store(counter, 0)
            merged = first_head + tl.arange(0, MERGED_HEADS)
            reduce_parts(
                out, lse, into, out_row, first_part, num_parts, merged, last_head, HEADS, D, DIM, MERGED_HEADS,
                MERGED_PARTS, 1
            )  # fmt: skip


@triton.jit(do_not_specialize_on_alignment=["lse", "split_rows"])
def _reduce_kernel(  # type: ignore[no-untyped-def]
    out, lse, into, split_rows, HEADS: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr, PARTS: tl.constexpr
):
    """split_rows: see DecodePlan. One program merges the partials of one row and query head."""
    split_row = split_rows + tl.program_id(0) // HEADS * 3
    row, first, count = tl.load(split_row), tl.load(split_row + 1), tl.load(split_row + 2).to(tl.int32)
    head = tl.program_id(0) % HEADS + tl.arange(0, 1)
    last_head = tl.where(count > 0, HEADS, 0)
    reduce_parts(out, lse, into, row, first, count, head, last_head, HEADS, D, DIM, 1, PARTS, 4)
