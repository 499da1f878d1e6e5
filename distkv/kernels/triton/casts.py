"""Conversions between number types that are right in Triton's interpreter and fast on GPUs."""

from __future__ import annotations

import triton
import triton.language as tl

_INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))

DOT_TYPES = {
    "float32": tl.float32,
    "float16": tl.float16,
    # The interpreter has no arithmetic on bfloat16, but float32 has all its numbers.
    "bfloat16": tl.float32 if _INTERPRETED.value else tl.bfloat16,
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
    if _INTERPRETED and (dtype == tl.bfloat16 or dtype == tl.float8e4nv):
        DROPPED: tl.constexpr = 16 if dtype == tl.bfloat16 else 20
        bits = x.to(tl.int32, bitcast=True)
        bits += (1 << (DROPPED - 1)) - 1 + ((bits >> DROPPED) & 1)
        near = ((bits >> DROPPED) << DROPPED).to(tl.float32, bitcast=True)
        if dtype == tl.float8e4nv:
            # Below 2⁻⁶ its numbers lie 2⁻⁹ apart, as do those of float32 around 2¹⁴: a sum with one rounds to them.
            near = tl.where(tl.abs(x) < 2.0**-6, (x + 1.5 * 2.0**14) - 1.5 * 2.0**14, near)
        x = near
    return x.to(dtype)
