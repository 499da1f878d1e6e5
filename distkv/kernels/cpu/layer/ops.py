"""The small operations of a decoder layer, by the native library."""

from __future__ import annotations

import torch
from torch import Tensor

from distkv.kernels.cpu.calls.functions import DTYPES
from distkv.kernels.cpu.calls.library import Native


class NativeOps:
    """See Ops; each is one pass, in native/ops.h."""

    def __init__(self, native: Native) -> None:
        self._rms_norm, self._add_rms_norm, self._silu_mul = native.rms_norm, native.add_rms_norm, native.silu_mul

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        x = _rows(x)
        rows, width = x.shape
        out = torch.empty(rows, width, dtype=x.dtype)
        self._rms_norm(DTYPES[x.dtype], x.data_ptr(), x.stride(0), rows, width, weight.data_ptr(), eps, out.data_ptr())
        return out

    def add_rms_norm(self, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See Ops."""
        x, y = _rows(x), _rows(y)
        rows, width = x.shape
        total, out = torch.empty(rows, width, dtype=x.dtype), torch.empty(rows, width, dtype=x.dtype)
        self._add_rms_norm(
            DTYPES[x.dtype],
            x.data_ptr(),
            x.stride(0),
            y.data_ptr(),
            y.stride(0),
            rows,
            width,
            weight.data_ptr(),
            eps,
            total.data_ptr(),
            out.data_ptr(),
        )
        return total, out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See Ops."""
        gate_up = _rows(gate_up)
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty(rows, width, dtype=gate_up.dtype)
        self._silu_mul(DTYPES[gate_up.dtype], gate_up.data_ptr(), gate_up.stride(0), rows, width, out.data_ptr())
        return out


def _rows(x: Tensor) -> Tensor:
    """Rows as the library reads them: the numbers of one without gaps."""
    return x if x.stride(-1) == 1 else x.contiguous()
