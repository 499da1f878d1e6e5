"""The sums of xxh3 over rBlocks, by the device where they lie; see distkv.kernels.checksum."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from distkv.kernels.checksum import BLOCK_STRIPES, STRIPE_WORDS, SUMS, tables

_LANES = tl.constexpr(SUMS)
_STRIPES = tl.constexpr(BLOCK_STRIPES)
_BLOCK_WORDS = tl.constexpr(BLOCK_STRIPES * STRIPE_WORDS)
_LAST_KEY, _FIRST_SUM = tl.constexpr(24), tl.constexpr(32)
_PRIME = tl.constexpr(0x9E3779B1)
_LOW = tl.constexpr(0xFFFFFFFF)


def sums_of_blocks(pool: Tensor, slots: Tensor) -> Tensor:
    """int64 [n, 8], of the rBlocks `slots` of a pool: uint8 [num_slots, bytes] at a multiple of 8, bytes as `has_sums`
    wants them. slots: int64 [n], on the pool's device."""
    sums = torch.empty(len(slots), SUMS, dtype=torch.int64, device=pool.device)
    if len(slots):
        words = pool.view(torch.int64)
        _sums_kernel[(len(slots),)](
            words, slots, tables(pool.device), sums, words.stride(0), words.shape[1], num_warps=1
        )
    return sums


@triton.jit(do_not_specialize=["stride", "num_words"], do_not_specialize_on_alignment=["words", "slots"])
def _sums_kernel(words, slots, table, sums, stride, num_words):  # type: ignore[no-untyped-def]
    """One program for each rBlock: what follows a scramble depends on all before it. In int64, whose sums and products
    are those of unsigned words; shifts are masked."""
    lane = tl.arange(0, _LANES)
    stripe = tl.arange(0, _STRIPES)
    place = stripe[:, None] * _LANES + lane[None, :]
    swapped = stripe[:, None] * _LANES + (lane ^ 1)[None, :]
    keys = tl.load(table + stripe[:, None] + lane[None, :])
    scramble = tl.load(table + _STRIPES + lane)
    total = tl.load(table + _FIRST_SUM + lane)
    words += tl.load(slots + tl.program_id(0)) * stride

    num_blocks = (num_words * 8 - 1) // (_BLOCK_WORDS * 8)
    for _ in tl.range(0, num_blocks, num_stages=4):
        key = tl.load(words + place) ^ keys
        total += tl.sum((key & _LOW) * (key >> 32 & _LOW) + tl.load(words + swapped), 0)
        total = (total ^ (total >> 47 & 0x1FFFF) ^ scramble) * _PRIME
        words += _BLOCK_WORDS

    # The last block is not whole, and its last stripe is counted by itself, wherever it begins.
    left = num_words - num_blocks * _BLOCK_WORDS
    is_whole = (stripe < (left * 8 - 1) // (_LANES * 8))[:, None] & (lane >= 0)[None, :]
    key = tl.load(words + place, mask=is_whole, other=0) ^ keys
    added = (key & _LOW) * (key >> 32 & _LOW) + tl.load(words + swapped, mask=is_whole, other=0)
    total += tl.sum(tl.where(is_whole, added, 0), 0)
    words += left - _LANES
    key = tl.load(words + lane) ^ tl.load(table + _LAST_KEY + lane)
    total += (key & _LOW) * (key >> 32 & _LOW) + tl.load(words + (lane ^ 1))
    tl.store(sums + tl.program_id(0) * _LANES + lane, total)
