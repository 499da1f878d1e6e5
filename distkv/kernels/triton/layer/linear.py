"""Linear layers of few rows, which take as long as their weights take to read.

cuBLAS divides the inputs of small ones between programs, and adds up in a second launch; here each program reads a few
rows of the weights from end to end. More rows are cuBLAS's.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from distkv.kernels.layer.linear import TorchLinear
from distkv.kernels.triton.attention.prefill_tiles import device_limits
from distkv.kernels.triton.casts import DOT_TYPES, rounded

_OUTPUTS, _INPUTS, _STAGES, _WARPS = 8, 512, 4, 4
"""Of a program: rows of the weights, how much of them it multiplies at a time, and how many of these are on their
way."""

_FEW_ROWS = 16
"""What tensor cores take at least."""


class _Tile(NamedTuple):
    """The same of a program for a few rows."""

    outputs: int
    inputs: int
    stages: int
    warps: int

    @property
    def shared_bytes(self) -> int:
        """What its stages need."""
        return 2 * self.stages * self.inputs * (self.outputs + _FEW_ROWS)


_WIDE, _NARROW = _Tile(64, 128, 5, 4), _Tile(16, 256, 5, 2)


class TritonLinear(TorchLinear):
    """See Linear."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight.contiguous(), bias)
        self._tile = _tile_for(self.weight)

    def __call__(self, x: Tensor, /) -> Tensor:
        """See Linear."""
        if not len(x):  # a step of chunks that end no prompt: nothing is read for it
            return x.new_empty(0, len(self.weight))
        if len(x) == 1:
            return multiply(x, self.weight, self.bias)
        if self._tile is not None and len(x) <= _FEW_ROWS:
            return _multiply_few(x, self.weight, self.bias, self._tile)
        return super().__call__(x)


def _tile_for(weight: Tensor) -> _Tile | None:
    """For a few rows; None where cuBLAS is faster, as measured on an H200: with few outputs of many inputs, which it
    divides, and in float32, which tensor cores do not multiply."""
    outputs, inputs = weight.shape
    is_long = inputs > 3 * outputs and outputs < 6144
    tile, least_outputs = (_NARROW, 3072) if is_long else (_WIDE, 2048)
    fits = tile.shared_bytes <= device_limits(weight.device)[1]
    return tile if fits and outputs >= least_outputs and weight.dtype != torch.float32 else None


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


def _multiply_few(x: Tensor, weight: Tensor, bias: Tensor | None, tile: _Tile) -> Tensor:
    """The same of x [N, in], up to 16 rows: [N, out]."""
    outputs, inputs = weight.shape
    out = torch.empty(len(x), outputs, dtype=x.dtype, device=x.device)
    _multiply_few_kernel[triton.cdiv(outputs, tile.outputs),](
        x.contiguous(),
        weight,
        bias,
        out,
        len(x),
        outputs,
        IN=inputs,
        ROWS=_FEW_ROWS,
        OUTPUTS=tile.outputs,
        INPUTS=tile.inputs,
        STAGES=tile.stages,
        DOT=DOT_TYPES[str(x.dtype).removeprefix("torch.")],
        num_warps=tile.warps,
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


@triton.jit(do_not_specialize=["rows"])
def _multiply_few_kernel(  # type: ignore[no-untyped-def]
    x,
    weight,
    bias,
    out,
    rows,
    num_outputs,
    IN: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    STAGES: tl.constexpr,
    DOT: tl.constexpr,
):
    """As above, with the rows side by side: what is multiplied is [OUTPUTS, INPUTS] by [INPUTS, ROWS]."""
    output, column, row = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS), tl.arange(0, INPUTS), tl.arange(0, ROWS)
    is_output, is_row = output < num_outputs, row < rows
    weight += tl.minimum(output, num_outputs - 1).to(tl.int64)[:, None] * IN
    sums = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for start in tl.range(0, IN, INPUTS, num_stages=STAGES):
        place = start + column
        is_input = place < IN
        numbers = tl.load(weight + place[None, :], mask=is_input[None, :], other=0.0, eviction_policy="evict_first")
        inputs = tl.load(x + row[None, :] * IN + place[:, None], mask=is_row[None, :] & is_input[:, None], other=0.0)
        sums = tl.dot(numbers.to(DOT), inputs.to(DOT), sums)
    if bias is not None:
        sums += tl.load(bias + output, mask=is_output, other=0.0).to(tl.float32)[:, None]
    place = out + row[None, :] * num_outputs + output[:, None]
    tl.store(place, rounded(sums, out.dtype.element_ty), mask=is_row[None, :] & is_output[:, None])
