"""Linear layers for CPUs, over weights in an order of their own."""

from __future__ import annotations

import torch
from torch import Tensor

from distkv.kernels.cpu.calls.functions import DTYPES, LinearPart
from distkv.kernels.cpu.calls.library import Native
from distkv.kernels.cpu.huge_pages import HugePages

_LANES = 32
_LINE_BYTES = 128
"""Of a packed panel, per step of the input; as in native/linear.h."""


class NativeLinear:
    """A Linear of the native library, over panels of 32 outputs; see native/linear.h. float32, bfloat16 or float16."""

    def __init__(self, native: Native, weight: Tensor, bias: Tensor | None, memory: HugePages) -> None:
        """memory: for the packed weights. Raises MemoryError."""
        weight = weight.contiguous()
        self._out, self._in = weight.shape
        self._dtype, self._dtype_code = weight.dtype, DTYPES[weight.dtype]
        lines = -(-self._in * weight.element_size() // 4)
        self._packed = memory.take(-(-self._out // _LANES) * lines * _LINE_BYTES)
        self._bias = None if bias is None else bias.contiguous()
        self._packed_at = self._packed.data_ptr()
        self._bias_at = None if self._bias is None else self._bias.data_ptr()
        native.linear_pack(weight.element_size(), weight.data_ptr(), self._in, self._out, self._in, self._packed_at)
        self._run = native.linear

    @property
    def part(self) -> LinearPart:
        """For calls that compute more than this layer; holds while it lives."""
        return LinearPart(packed=self._packed_at, bias=self._bias_at, k=self._in, n=self._out)

    def __call__(self, x: Tensor, /) -> Tensor:
        """See Linear. Raises ValueError for an x that is no [N, in] or of another dtype, MemoryError."""
        rows, width = x.shape
        if width != self._in or x.dtype != self._dtype:
            raise ValueError(f"expected {self._dtype} [N, {self._in}], got {x.dtype} {list(x.shape)}")
        if x.stride(1) != 1:
            x = x.contiguous()
        out = torch.empty(rows, self._out, dtype=self._dtype)
        has_failed = self._run(
            self._dtype_code,
            x.data_ptr(),
            x.stride(0),
            rows,
            width,
            self._packed_at,
            self._bias_at,
            self._out,
            out.data_ptr(),
            self._out,
        )
        if has_failed:
            raise MemoryError("a linear layer found no memory for its sums")
        return out
