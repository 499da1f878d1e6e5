"""The small operations of a decoder layer. They round where transformers rounds."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from distkv.kernels.cpu.dispatch import Choice
from distkv.kernels.cpu.library import Native
from distkv.kernels.cpu.native_backend import DTYPES


class Ops(Protocol):
    """All tensors of a call have one dtype, float32, bfloat16 or float16; arithmetic is in float32."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """weight · x / √(mean of x² + eps), the quotient rounded before it is multiplied.

        x: [N, W]; weight: [W].
        """

    def add_rms_norm(self, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """x + y, and its RMS norm. x, y: [N, W]; weight: [W]."""

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(gate) · up, [N, W], the first factor rounded before it is multiplied. gate_up: [N, 2 · W]."""


def ops_of(choice: Choice) -> Ops:
    """Those of the level that was chosen."""
    return TorchOps() if choice.native is None else NativeOps(choice.native)


class TorchOps:
    """Ops that need nothing but torch."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        wide = x.float()
        normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return weight * normal.to(x.dtype)

    def add_rms_norm(self, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See Ops."""
        total = x + y
        return total, self.rms_norm(total, weight, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See Ops."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up


class NativeOps:
    """Ops of the native library, each one pass; see native/ops.h."""

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
