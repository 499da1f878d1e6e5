"""Linear layers for CPUs, over weights in an order of their own."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from distkv.kernels.cpu.calls.functions import DTYPES, LinearPart
from distkv.kernels.cpu.calls.library import Native
from distkv.kernels.cpu.huge_pages import HugePages

LinearKind = Literal["native", "onednn"]

_LANES = 32
_LINE_BYTES = 128
"""Of a packed panel, per step of the input; as in native/linear.h."""


def linear_kind(level: str, dtype: torch.dtype) -> LinearKind:
    """Whose linear layers a level of the native library goes with, by the dtype of the weights.

    Our own read weights as fast as memory gives them, for a few rows, and compute as fast as oneDNN's for many. Only
    tiles of bfloat16 (AMX) multiply many rows several times as fast, and these are oneDNN's.
    """
    return "onednn" if level == "avx512bf16" and dtype == torch.bfloat16 and _has_tiles() else "native"


def padded_rows(rows: int) -> int:
    """Of 17, 18, ... 32 times a power of two the least that is enough: sixteen sizes for each doubling, at most a
    sixteenth more rows."""
    step = 1 << max(0, (rows - 1).bit_length() - 5)
    return -(-rows // step) * step


class OneDnnLinear:
    """A Linear of oneDNN, over weights in its own order.

    oneDNN compiles a kernel for each number of rows, which takes longer than to multiply hundreds of them, and keeps
    about a thousand. Chunks beside decodes have ever other numbers, so rows are added until it is one of a few.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        self._bias = bias

    def __call__(self, x: Tensor, /) -> Tensor:
        """See Linear."""
        rows = x.shape[0]
        if (padding := padded_rows(rows) - rows) > 0:
            x = F.pad(x, (0, 0, 0, padding))
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return out[:rows]


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
        """See Linear. Raises ValueError for an x that is no [N, in] or of another dtype."""
        rows, width = x.shape
        if width != self._in or x.dtype != self._dtype:
            raise ValueError(f"expected {self._dtype} [N, {self._in}], got {x.dtype} {list(x.shape)}")
        if x.stride(1) != 1:
            x = x.contiguous()
        out = torch.empty(rows, self._out, dtype=self._dtype)
        self._run(
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
        return out


def _has_onednn() -> bool:
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _has_tiles() -> bool:
    return _has_onednn() and torch.cpu._is_amx_tile_supported()
