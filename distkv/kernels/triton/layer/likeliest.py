"""The likeliest token of each row of logits, found while they are widened."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """See distkv.kernels.Backend.likeliest. Of the numbers of a row each stands next to the one before."""
    rows, width = logits.shape
    pieces = triton.cdiv(width, _BLOCK)
    wide = torch.empty(rows, width, dtype=torch.float32, device=logits.device)
    peaks = torch.empty(rows, pieces, dtype=torch.float32, device=logits.device)
    places = torch.empty(rows, pieces, dtype=torch.int64, device=logits.device)
    found = torch.empty(rows, dtype=torch.int64, device=logits.device)
    checked = torch.empty_like(found)
    if rows:
        _of_pieces[rows, pieces](logits, wide, peaks, places, logits.stride(0), W=width, BLOCK=_BLOCK, num_warps=4)
        block = triton.next_power_of_2(pieces)
        _of_rows[rows,](peaks, places, found, checked, W=width, PIECES=pieces, BLOCK=block, num_warps=1)
    return wide, found, checked


@triton.jit
def _of_pieces(logits, wide, peaks, places, stride, W: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """A piece of one row."""
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = piece * BLOCK + tl.arange(0, BLOCK)
    mask = place < W
    value = tl.load(logits + row * stride + place, mask=mask, other=-float("inf")).to(tl.float32)
    tl.store(wide + row * W + place, value, mask=mask)
    # What is no number is the largest, as torch has it.
    peak, at = tl.max(tl.where(value != value, float("inf"), value), 0, return_indices=True)
    here = row * tl.num_programs(1) + piece
    tl.store(peaks + here, peak)
    tl.store(places + here, piece * BLOCK + at)


@triton.jit
def _of_rows(  # type: ignore[no-untyped-def]
    peaks, places, found, checked, W: tl.constexpr, PIECES: tl.constexpr, BLOCK: tl.constexpr
):
    """One row; of equals the first piece."""
    row, piece = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    value = tl.load(peaks + row * PIECES + piece, mask=piece < PIECES, other=-float("inf"))
    peak, at = tl.max(value, 0, return_indices=True)
    token = tl.load(places + row * PIECES + at)
    tl.store(found + row, token)
    tl.store(checked + row, tl.where(tl.abs(peak) < float("inf"), token, W))
