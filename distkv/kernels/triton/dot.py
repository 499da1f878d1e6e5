"""Matrix products that Triton's interpreter can compute too."""

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def operand(x):  # type: ignore[no-untyped-def]
    """x for tl.dot. The interpreter has no arithmetic on bfloat16, but all bfloat16 numbers are float32 numbers."""
    return x.to(tl.float32) if INTERPRETED and x.dtype == tl.bfloat16 else x
