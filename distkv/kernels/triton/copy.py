"""Whole rBlocks between a pool and staging memory, and checksums of them where they lie."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

_COPY_BYTES = 16 << 10
"""Of one program: 128 threads with eight times 16 bytes each."""

_MULTIPLIER = 6364136223846793005
"""Knuth's, for generators modulo 2⁶⁴. It is 5 modulo 8, so that its powers repeat as late as those of any number."""

_LANES = 1024
_ROUNDS = 16
_SUM_WORDS = _ROUNDS * _LANES
"""Of one program: 64 KiB."""


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


def block_checksums(pool: Tensor, slots: Tensor) -> Tensor:
    """A 64-bit checksum of each of some rBlocks, int64 [n], computed where they lie.

    pool: uint8 [num_slots, bytes], bytes a multiple of 4. slots: int64 [n], on the pool's device.

    It is the number whose digits to the base m are 1 and then the rBlock's little-endian 32-bit words, modulo 2⁶⁴,
    where m = 6364136223846793005: any split of the words can be summed in parallel. As m is odd, a change of one word
    is always detected; so is an exchange of two words, and any two changed bits, in rBlocks below 2³¹ words. Other
    damage goes undetected with a chance of about 2⁻⁶⁴. It is no protection against an adversary, and it is not the
    xxh3 that instances on CPUs exchange: both sides of a transfer have to compute the same of the two.
    """
    num_bytes = pool.shape[1]
    if num_bytes % 4:
        raise ValueError(f"checksums are of 32-bit words, so an rBlock needs a multiple of 4 bytes, got {num_bytes}")
    words = pool.view(torch.int32)
    num_words = words.shape[1]
    one = _signed(pow(_MULTIPLIER, num_words, 1 << 64))
    sums = torch.full((len(slots),), one, dtype=torch.int64, device=pool.device)
    if len(slots):
        pieces = triton.cdiv(num_words, _SUM_WORDS)
        _checksum_kernel[(len(slots) * pieces,)](
            words,
            slots,
            sums,
            words.stride(0),
            num_words,
            pieces,
            MULTIPLIER=_MULTIPLIER,
            PER_ROUND=_signed(pow(_MULTIPLIER, _LANES, 1 << 64)),
            PER_PIECE=_signed(pow(_MULTIPLIER, _SUM_WORDS, 1 << 64)),
            LANES=_LANES,
            ROUNDS=_ROUNDS,
        )
    return sums


def checksum_reference(block: Tensor) -> int:
    """What `block_checksums` computes, word by word. block: uint8 [bytes]."""
    total = 1
    for word in block.cpu().view(torch.int32).tolist():
        total = (total * _MULTIPLIER + word % (1 << 32)) % (1 << 64)
    return _signed(total)


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


def _signed(number: int) -> int:
    """The 64 bits of `number` as torch's int64 has them."""
    return number - (1 << 64) if number >> 63 else number


@triton.jit(do_not_specialize=["pieces"], do_not_specialize_on_alignment=["slots"])
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
    """A piece of one rBlock. Strides and length are in STEPs, so that the compiler sees what divides an address."""
    row = tl.program_id(0) // pieces
    place = tl.program_id(0) % pieces * BLOCK + tl.arange(0, BLOCK)
    mask = place < length * STEP
    pool += tl.load(slots + row) * (pool_stride * STEP)
    staging += row.to(tl.int64) * (staging_stride * STEP)
    if GATHERS:
        tl.store(staging + place, tl.load(pool + place, mask=mask), mask=mask)
    else:
        tl.store(pool + place, tl.load(staging + place, mask=mask), mask=mask)


@triton.jit(do_not_specialize=["pieces"], do_not_specialize_on_alignment=["slots", "sums"])
def _checksum_kernel(  # type: ignore[no-untyped-def]
    words,
    slots,
    sums,
    stride,
    num_words,
    pieces,
    MULTIPLIER: tl.constexpr,
    PER_ROUND: tl.constexpr,
    PER_PIECE: tl.constexpr,
    LANES: tl.constexpr,
    ROUNDS: tl.constexpr,
):
    """A piece of one rBlock, counted from its end. A lane takes every LANES-th word and weighs their sum at the end."""
    row, piece = tl.program_id(0) // pieces, tl.program_id(0) % pieces
    words += tl.load(slots + row) * stride
    lane = tl.arange(0, LANES)
    end = num_words - piece * (LANES * ROUNDS)
    total = tl.zeros([LANES], tl.int64)
    for round in tl.static_range(ROUNDS):
        place = end - (ROUNDS - round) * LANES + lane
        word = tl.load(words + place, mask=place >= 0, other=0)
        total = total * PER_ROUND + (word.to(tl.int64) & 0xFFFFFFFF)
    weight = _power(MULTIPLIER, LANES - 1 - lane, 10) * _power(PER_PIECE, piece, 17)
    tl.atomic_add(sums + row, tl.sum(total * weight), sem="relaxed")


@triton.jit
def _power(base: tl.constexpr, exponent, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
    """base to the power of an exponent of so many bits, modulo 2⁶⁴."""
    power = tl.zeros_like(exponent).to(tl.int64) + 1
    factor = tl.full([], base, tl.int64)
    for bit in tl.static_range(BITS):
        power = tl.where((exponent >> bit) & 1 == 1, power * factor, power)
        factor *= factor
    return power
