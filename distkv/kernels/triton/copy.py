"""Copies of whole rBlocks between a pool and staging memory, and from one pool to another."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

_COPY_BYTES = 16 << 10
"""Of one program: 128 threads with eight times 16 bytes each."""


def gather_blocks(pool: Tensor, slots: Tensor, staging: Tensor | None = None) -> Tensor:
    """rBlocks `slots` of a pool, one after the other.

    pool: uint8 [num_slots, bytes], rows without gaps inside. slots: int64 [n], on the pool's device. staging: uint8
    [n, bytes] on that device or in pinned host memory, new on the device where None; returned.
    """
    if staging is None:
        staging = torch.empty(len(slots), pool.shape[1], dtype=torch.uint8, device=pool.device)
    _check(staging, len(slots), pool)
    _copy(pool, slots, staging, None)
    return staging


def scatter_blocks(staging: Tensor, pool: Tensor, slots: Tensor) -> None:
    """The reverse of `gather_blocks`: row i of staging to rBlock slots[i]. No slot twice."""
    _check(staging, len(slots), pool)
    _copy(staging, None, pool, slots)


def copy_blocks(source: Tensor, source_slots: Tensor, pool: Tensor, slots: Tensor) -> None:
    """rBlock source_slots[i] of another pool, which the device reaches, to rBlock slots[i]. No slot twice in `slots`.

    source, pool: uint8 [any, bytes], as in `gather_blocks`; they do not overlap. Slots: int64 [n], on the device.
    """
    if len(source_slots) != len(slots) or source.shape[1] != pool.shape[1]:
        raise ValueError(
            f"{len(source_slots)} rBlocks of {source.shape[1]} bytes for {len(slots)} of {pool.shape[1]} bytes"
        )
    _copy(source, source_slots, pool, slots)


def _check(staging: Tensor, count: int, pool: Tensor) -> None:
    shape = count, pool.shape[1]
    if staging.shape != shape:
        raise ValueError(
            f"{count} rBlocks of {shape[1]} bytes need staging of shape {shape}, got {tuple(staging.shape)}"
        )


def _copy(source: Tensor, source_slots: Tensor | None, target: Tensor, target_slots: Tensor | None) -> None:
    """Rows of one to rows of the other: those of these slots, or one after the other where there are none."""
    slots = target_slots if source_slots is None else source_slots
    assert slots is not None
    if not len(slots) or not target.shape[1]:
        return
    # What every rBlock's place and length is a multiple of.
    step = math.gcd(16, source.shape[1], *(n for x in (source, target) for n in (x.stride(0), x.data_ptr())))
    unit = {16: torch.int64, 8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}[step]
    source, target = source.view(unit), target.view(unit)
    block = _COPY_BYTES // unit.itemsize
    pieces = triton.cdiv(source.shape[1], block)
    _copy_kernel[(len(slots) * pieces,)](
        source,
        target,
        source_slots,
        target_slots,
        source.stride(0) * unit.itemsize // step,
        target.stride(0) * unit.itemsize // step,
        source.shape[1] * unit.itemsize // step,
        pieces,
        STEP=step // unit.itemsize,
        BLOCK=block,
    )


@triton.jit(
    do_not_specialize=["source_stride", "target_stride", "length", "pieces"],
    do_not_specialize_on_alignment=["source", "target", "source_slots", "target_slots"],
)
def _copy_kernel(  # type: ignore[no-untyped-def]
    source,
    target,
    source_slots,
    target_slots,
    source_stride,
    target_stride,
    length,
    pieces,
    STEP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A piece of one rBlock. Strides and length are in STEPs, which both addresses are multiples of: what the compiler
    knows of an address follows from STEP alone, so that memory at another one needs no other kernel."""
    row = tl.program_id(0) // pieces
    place = tl.program_id(0) % pieces * BLOCK + tl.arange(0, BLOCK)
    mask = place < length * STEP
    source_row = row.to(tl.int64)
    target_row = row.to(tl.int64)
    if source_slots is not None:
        source_row = tl.load(source_slots + row)
    if target_slots is not None:
        target_row = tl.load(target_slots + row)
    STEP_BYTES: tl.constexpr = STEP * (source.dtype.element_ty.primitive_bitwidth // 8)
    source = tl.multiple_of(source + source_row * (source_stride * STEP), STEP_BYTES)
    target = tl.multiple_of(target + target_row * (target_stride * STEP), STEP_BYTES)
    tl.store(target + place, tl.load(source + place, mask=mask), mask=mask)
