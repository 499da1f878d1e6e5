"""Conversions between number types that are right in Triton's interpreter and fast on GPUs."""

from __future__ import annotations

import triton
import triton.language as tl

from distkv.kernels.triton.dot import INTERPRETED

DOT_TYPES = {
    "float32": tl.float32,
    "float16": tl.float16,
    # The interpreter has no arithmetic on bfloat16, but float32 has all its numbers.
    "bfloat16": tl.float32 if INTERPRETED.value else tl.bfloat16,
}
"""What `Shape.dot_dtype` names, for tl.dot."""


@triton.jit
def widened(x, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """x in a type that holds all its numbers.

    From float8 to bfloat16 by way of float32: GPUs have no conversion between the two, and the one through float16
    runs at an eighth of the rate.
    """
    if x.dtype == tl.float8e4nv:
        x = x.to(tl.float32)
    return x.to(dtype)


@triton.jit
def rounded(x, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """float32 x in `dtype`, to the nearest and to even between two. For float8, |x| is at most 448.

    The interpreter cuts what it casts to bfloat16 and float8, so there x is rounded first.
    """
    if INTERPRETED:
        if dtype == tl.bfloat16:
            x = _to_bits(x, 16)
        elif dtype == tl.float8e4nv:
            # Below 2⁻⁶ its numbers lie 2⁻⁹ apart: adding a number whose own lie so far apart rounds to them.
            x = tl.where(tl.abs(x) < 2.0**-6, (x + 1.5 * 2.0**14) - 1.5 * 2.0**14, _to_bits(x, 20))
    return x.to(dtype)


@triton.jit
def _to_bits(x, dropped: tl.constexpr):  # type: ignore[no-untyped-def]
    """x without its last `dropped` bits, to the nearest even."""
    bits = x.to(tl.int32, bitcast=True)
    bits += (1 << (dropped - 1)) - 1 + ((bits >> dropped) & 1)
    return ((bits >> dropped) << dropped).to(tl.float32, bitcast=True)
