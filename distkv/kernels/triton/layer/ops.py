"""The small operations of a decoder layer, each one pass over its rows. They round where transformers rounds."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from distkv.kernels.triton.casts import rounded

_SILU_BLOCK = 1024


class TritonOps:
    """See distkv.kernels.layer.ops.Ops. Tensors of a call lie on one device."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        x = _rows(x)
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        _launch_norm(x, None, weight, None, out, eps)
        return out

    def add_rms_norm(self, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See Ops."""
        x, y = _rows(x), _rows(y)
        total = torch.empty_like(x, memory_format=torch.contiguous_format)
        out = torch.empty_like(total)
        _launch_norm(x, y, weight, total, out, eps)
        return total, out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See Ops."""
        gate_up = _rows(gate_up)
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
        if out.numel():
            grid = (rows, triton.cdiv(width, _SILU_BLOCK))
            _silu_mul[grid](gate_up, out, gate_up.stride(0), W=width, BLOCK=_SILU_BLOCK)
        return out


def _launch_norm(x: Tensor, y: Tensor | None, weight: Tensor, total: Tensor | None, out: Tensor, eps: float) -> None:
    rows, width = x.shape
    if not rows:
        return
    block = triton.next_power_of_2(width)
    _rms_norm[(rows,)](
        x,
        y,
        weight,
        total,
        out,
        x.stride(0),
        y.stride(0) if y is not None else 0,
        eps,
        W=width,
        BLOCK=block,
        num_warps=min(max(block // 512, 1), 16),
    )


def _rows(x: Tensor) -> Tensor:
    """Rows as the kernels read them: the numbers of one without gaps."""
    return x if x.stride(-1) == 1 else x.contiguous()


@triton.jit
def _rms_norm(  # type: ignore[no-untyped-def]
    x, y, weight, total, out, x_stride, y_stride, eps, W: tl.constexpr, BLOCK: tl.constexpr
):
    """One row: x, or x + y, which is stored to total, and its norm to out."""
    dtype: tl.constexpr = x.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    mask = place < W
    wide = tl.load(x + row * x_stride + place, mask=mask, other=0.0).to(tl.float32)
    if y is not None:
        wide += tl.load(y + row * y_stride + place, mask=mask, other=0.0).to(tl.float32)
        narrow = rounded(wide, dtype)
        tl.store(total + row * W + place, narrow, mask=mask)
        wide = narrow.to(tl.float32)
    normal = rounded(wide * tl.rsqrt(tl.sum(wide * wide) / W + eps), dtype).to(tl.float32)
    gain = tl.load(weight + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * W + place, rounded(gain * normal, dtype), mask=mask)


@triton.jit
def _silu_mul(gate_up, out, stride, W: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """A piece of one row."""
    dtype: tl.constexpr = gate_up.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = place < W
    gate = tl.load(gate_up + row * stride + place, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * stride + W + place, mask=mask, other=0.0).to(tl.float32)
    # Of the two forms of the sigmoid, each where its exponential is at most 1.
    small = tl.exp(-tl.abs(gate))
    silu = gate * tl.where(gate >= 0, 1.0, small) / (1.0 + small)
    tl.store(out + row * W + place, rounded(rounded(silu, dtype).to(tl.float32) * up, dtype), mask=mask)
