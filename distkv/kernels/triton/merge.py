"""ScaleReduce in Triton; the formula is in distkv/kernels/README.md."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from distkv.kernels.attention.merge import Partial
from distkv.kernels.triton.casts import rounded

_LOG2_E = tl.constexpr(1.4426950408889634)
_LN_2 = tl.constexpr(0.6931471805599453)
WIDTHS = (2, 4, 8, 16, 32)
"""Partials that a kernel is compiled for: it takes fewer too. More than the last are folded."""

_NUMBERS = 4096
"""Of a partial that a program merges at a time: whole pairs of row and head."""

_ALL_NUMBERS = 32768
"""Of all partials: the compiler reads them ahead of their use, into registers."""


def merge_partials(partials: Sequence[Partial]) -> Partial:
    """As distkv.kernels.attention.merge: partials of the same queries over disjoint keys, in the order given; not none.

    float32. The inputs are left as they are; one partial alone is returned itself.
    """
    total, rest = partials[0], list(partials[1:])
    while rest:
        total = _merge([total, *rest[: WIDTHS[-1] - 1]])
        rest = rest[WIDTHS[-1] - 1 :]
    return total


def _merge(partials: Sequence[Partial]) -> Partial:
    # Nothing is read of those that fill up the width.
    count = len(partials)
    filled = [*partials, *[partials[0]] * (next(width for width in WIDTHS if width >= count) - count)]
    outs = tuple(out.contiguous() for out, _ in filled)
    lses = tuple(lse.contiguous() for _, lse in filled)
    out, lse = torch.empty_like(outs[0]), torch.empty_like(lses[0])
    dim = triton.next_power_of_2(out.shape[2])
    pairs = max(1, min(_NUMBERS, _ALL_NUMBERS // len(filled)) // dim)
    if lse.numel():
        grid = (triton.cdiv(lse.numel(), pairs),)
        _merge_kernel[grid](out, lse, outs, lses, count, lse.numel(), D=out.shape[2], DIM=dim, PAIRS=pairs)
    return out, lse


@triton.jit(do_not_specialize=["count", "num_pairs"], do_not_specialize_on_alignment=["lse", "lses"])
def _merge_kernel(  # type: ignore[no-untyped-def]
    out, lse, outs, lses, count, num_pairs, D: tl.constexpr, DIM: tl.constexpr, PAIRS: tl.constexpr
):
    """outs, lses: tuples of partials, each [pairs, D] and [pairs], where a pair is a row and a head. The first `count`
    are merged, one at least."""
    pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    dim = tl.arange(0, DIM)
    is_pair = pair < num_pairs
    where = pair.to(tl.int64)[:, None] * D + dim[None, :]
    is_element = is_pair[:, None] & (dim < D)[None, :]
    peak = tl.load(lses[0] + pair, mask=is_pair, other=0.0)
    for i in tl.static_range(1, len(lses)):
        is_there = pair < tl.where(count > i, num_pairs, 0)
        peak = tl.maximum(peak, tl.load(lses[i] + pair, mask=is_there, other=-float("inf")))
    total = tl.zeros([PAIRS], tl.float32)
    merged = tl.zeros([PAIRS, DIM], tl.float32)
    for i in tl.static_range(len(lses)):
        is_there = pair < tl.where(count > i, num_pairs, 0)
        part_lse = tl.load(lses[i] + pair, mask=is_there, other=-float("inf"))
        weight = tl.exp2((part_lse - _finite(peak)) * _LOG2_E)
        part_out = tl.load(outs[i] + where, mask=is_there[:, None] & (dim < D)[None, :], other=0.0)
        merged += weight[:, None] * part_out
        total += weight
    total = _divisor(total)
    tl.store(out + where, merged / total[:, None], mask=is_element)
    tl.store(lse + pair, peak + tl.log2(total) * _LN_2, mask=is_pair)


@triton.jit
def reduce_parts(  # type: ignore[no-untyped-def]
    out,
    lse,
    into,
    row,
    first,
    count,
    head,
    last_head,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    DIM: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    PARTS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Rows [first, first + count) of out [rows, HEADS, D] and lse [rows, HEADS], merged into `row` of both, or, without
    an lse, into that of `into`, [rows, HEADS, D] of any type.

    head: [HEAD_TILE], those to merge, up to last_head. PARTS rows are read at a time, and STAGES - 1 times as many
    ahead; later ones rescale what is there, as tiles of attention do.
    """
    dim = tl.arange(0, DIM)
    is_head = head < last_head
    peak = tl.full([HEAD_TILE], -float("inf"), tl.float32)
    total = tl.zeros([HEAD_TILE], tl.float32)
    merged = tl.zeros([HEAD_TILE, DIM], tl.float32)
    for base in tl.range(0, count, PARTS, num_stages=STAGES):
        part = base + tl.arange(0, PARTS)
        pair = (first + part)[None, :] * HEADS + head[:, None]
        is_pair = (part < count)[None, :] & is_head[:, None]
        part_lse = tl.load(lse + pair, mask=is_pair, other=-float("inf"))
        is_element = is_pair[:, :, None] & (dim < D)[None, None, :]
        part_out = tl.load(out + pair[:, :, None] * D + dim[None, None, :], mask=is_element, other=0.0)
        new_peak = tl.maximum(peak, tl.max(part_lse, 1))
        weight = tl.exp2((part_lse - _finite(new_peak)[:, None]) * _LOG2_E)
        decay = tl.exp2((peak - _finite(new_peak)) * _LOG2_E)
        merged = merged * decay[:, None] + tl.sum(weight[:, :, None] * part_out, 1)
        total = total * decay + tl.sum(weight, 1)
        peak = new_peak
    pair = row * HEADS + head
    is_element = is_head[:, None] & (dim < D)[None, :]
    total = _divisor(total)
    merged = merged / total[:, None]
    if into is None:
        tl.store(out + pair[:, None] * D + dim[None, :], merged, mask=is_element)
        tl.store(lse + pair, peak + tl.log2(total) * _LN_2, mask=is_head)
    else:
        tl.store(into + pair[:, None] * D + dim[None, :], rounded(merged, into.dtype.element_ty), mask=is_element)


@triton.jit
def _finite(peak):  # type: ignore[no-untyped-def]
    """Any finite peak makes every weight of a row without keys exp(-inf) = 0."""
    return tl.where(peak == -float("inf"), 0.0, peak)


@triton.jit
def _divisor(total):  # type: ignore[no-untyped-def]
    """The largest weight is 1, so a total is at least 1, or 0 where the peak is -inf, or no number: then no lse is."""
    return tl.where(total == 0, 1.0, total)
