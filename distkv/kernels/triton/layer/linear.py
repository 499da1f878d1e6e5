"""Linear layers of one row, which take as long as their weights take to read.

cuBLAS divides the inputs of small ones between programs, and adds up in a second launch; here each program reads a few
rows of the weights from end to end. More rows are cuBLAS's.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from distkv.kernels.layer.linear import TorchLinear
from distkv.kernels.triton.casts import rounded

_OUTPUTS, _INPUTS, _STAGES, _WARPS = 8, 512, 4, 4
"""Of a program: rows of the weights, how much of them it multiplies at a time, and how many of these are on their
way."""


class TritonLinear(TorchLinear):
    """See Linear."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight.contiguous(), bias)

    def __call__(self, x: Tensor, /) -> Tensor:
        """See Linear."""
        return multiply(x, self.weight, self.bias) if len(x) == 1 else super().__call__(x)


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [1, in] by weight [out, in], which is contiguous, with bias [out] or None: [1, out], rounded once."""
    outputs, inputs = weight.shape
    out = torch.empty(1, outputs, dtype=x.dtype, device=x.device)
    _multiply_kernel[triton.cdiv(outputs, _OUTPUTS),](
        x.contiguous(),
        weight,
        bias,
        out,
        outputs,
        inputs,
        OUTPUTS=_OUTPUTS,
        INPUTS=_INPUTS,
        STAGES=_STAGES,
        num_warps=_WARPS,
    )
    return out


@triton.jit
def _multiply_kernel(  # type: ignore[no-untyped-def]
    x,
    weight,
    bias,
    out,
    num_outputs,
    num_inputs,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    STAGES: tl.constexpr,
):
    output, column = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS), tl.arange(0, INPUTS)
    is_output = output < num_outputs
    # Behind the last output it reads the last one again, and stores nothing.
    weight += tl.minimum(output, num_outputs - 1).to(tl.int64)[:, None] * num_inputs
    sums = tl.zeros([OUTPUTS, INPUTS], tl.float32)
    for start in tl.range(0, num_inputs, INPUTS, num_stages=STAGES):
        place = start + column
        is_input = place < num_inputs
        numbers = tl.load(weight + place[None, :], mask=is_input[None, :], other=0.0, eviction_policy="evict_first")
        sums += numbers.to(tl.float32) * tl.load(x + place, mask=is_input, other=0.0).to(tl.float32)[None, :]
    result = tl.sum(sums, 1)
    if bias is not None:
        result += tl.load(bias + output, mask=is_output, other=0.0).to(tl.float32)
    tl.store(out + output, rounded(result, out.dtype.element_ty), mask=is_output)
