"""The small operations of a decoder layer: what a model needs, and torch's. They round where transformers rounds."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


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
