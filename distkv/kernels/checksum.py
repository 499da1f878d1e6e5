"""xxh3 (64 bits, seed 0) in two parts: sums over all bytes, which a device can compute, and what is made of them.

The algorithm is that of xxHash 0.8 for inputs of more than 240 bytes with the default secret: stripes of 64 bytes,
eight sums of 64 bits, 16 stripes to a block, and a scramble of the sums behind each whole block.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

SUMS = 8
STRIPE_WORDS, BLOCK_STRIPES = 8, 16
SHORTEST_BYTES = 241
"""Shorter inputs have other algorithms."""

_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_PRIMES_32 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_PRIMES_64 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
_FIRST_SUMS = _PRIMES_32[2], *_PRIMES_64[:4], _PRIMES_32[1], _PRIMES_64[4], _PRIMES_32[0]
_LAST_STRIPE_KEY, _MERGE_KEY = 121, 11
"""Where in the secret these keys begin."""

_AVALANCHE = 0x165667919E3779F9
_WORD = 2**64 - 1


def has_sums(num_bytes: int) -> bool:
    """Whether inputs of so many bytes have such sums, over whole words."""
    return num_bytes >= SHORTEST_BYTES and num_bytes % 8 == 0


@cache
def tables(place: torch.device) -> Tensor:
    """int64 [40] on a device: the secret as 24 words, of which stripe i of a block has words i to i + 7, and the
    scramble the last eight; the key of the last stripe, eight words; the sums before the first byte."""
    words = np.frombuffer(_SECRET, np.uint64)
    last = np.frombuffer(_SECRET[_LAST_STRIPE_KEY : _LAST_STRIPE_KEY + 8 * SUMS], np.uint64)
    table = np.concatenate([words, last, np.array(_FIRST_SUMS, np.uint64)])
    return torch.from_numpy(table.view(np.int64)).to(place)


def checksums_of(sums: Tensor, num_bytes: int) -> list[int]:
    """xxh3 of each input of `num_bytes`, from its sums: int64 [n, 8] on the host."""
    return [_merged(row, num_bytes) for row in sums.numpy().view(np.uint64).tolist()]


def _merged(sums: Sequence[int], num_bytes: int) -> int:
    total = num_bytes * _PRIMES_64[0]
    for index in range(0, SUMS, 2):
        one, two = (sums[index + i] ^ _secret_word(_MERGE_KEY + 8 * (index + i)) for i in range(2))
        product = one * two
        total += (product & _WORD) ^ (product >> 64)
    total &= _WORD
    total ^= total >> 37
    total = total * _AVALANCHE & _WORD
    return total ^ total >> 32


def _secret_word(first_byte: int) -> int:
    return int.from_bytes(_SECRET[first_byte : first_byte + 8], "little")
