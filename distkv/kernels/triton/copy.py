"""Copies of whole rBlocks between a pool and staging memory."""

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
    _copy(pool, staging, slots, gathers=True)
    return staging


def scatter_blocks(staging: Tensor, pool: Tensor, slots: Tensor) -> None:
    """The reverse of `gather_blocks`: row i of staging to rBlock slots[i]. No slot twice."""
    _copy(pool, staging, slots, gathers=False)


def _copy(pool: Tensor, staging: Tensor, slots: Tensor, *, gathers: bool) -> None:
    shape = len(slots), pool.shape[1]
    if staging.shape != shape:
        raise ValueError(
            f"{shape[0]} rBlocks of {shape[1]} bytes need staging of shape {shape}, got {tuple(staging.shape)}"
        )
    if not staging.numel():
        return
    # What every rBlock's place and length is a multiple of.
    step = math.gcd(16, pool.shape[1], *(n for x in (pool, staging) for n in (x.stride(0), x.data_ptr())))
    unit = {16: torch.int64, 8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}[step]
    pool, staging = pool.view(unit), staging.view(unit)
    block = _COPY_BYTES // unit.itemsize
    pieces = triton.cdiv(pool.shape[1], block)
    _copy_kernel[(len(slots) * pieces,)](
        pool,
        staging,
        slots,
        pool.stride(0) * unit.itemsize // step,
        staging.stride(0) * unit.itemsize // step,
        pool.shape[1] * unit.itemsize // step,
        pieces,
        GATHERS=gathers,
        STEP=step // unit.itemsize,
        BLOCK=block,
    )


@triton.jit(
    do_not_specialize=["pool_stride", "staging_stride", "length", "pieces"],
    do_not_specialize_on_alignment=["pool", "staging", "slots"],
)
def _copy_kernel(  # type: ignore[no-untyped-def]
    pool,
    staging,
    slots,
    pool_stride,
    staging_stride,
    length,
    pieces,
    GATHERS: tl.constexpr,
    STEP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A piece of one rBlock. Strides and length are in STEPs, which both addresses are multiples of: what the compiler
    knows of an address follows from STEP alone, so that memory at another one needs no other kernel."""
    row = tl.program_id(0) // pieces
    place = tl.program_id(0) % pieces * BLOCK + tl.arange(0, BLOCK)
    mask = place < length * STEP
    STEP_BYTES: tl.constexpr = STEP * (pool.dtype.element_ty.primitive_bitwidth // 8)
    pool = tl.multiple_of(pool + tl.load(slots + row) * (pool_stride * STEP), STEP_BYTES)
    staging = tl.multiple_of(staging + row.to(tl.int64) * (staging_stride * STEP), STEP_BYTES)
    if GATHERS:
        tl.store(staging + place, tl.load(pool + place, mask=mask), mask=mask)
    else:
        tl.store(pool + place, tl.load(staging + place, mask=mask), mask=mask)
