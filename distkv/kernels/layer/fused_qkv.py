"""The output of a layer's QKV projection, before rotary embedding and attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class FusedQkv:
    """Queries, keys and values of N tokens, not rotated yet.

    rows: [N, (Hq + 2·Hkv)·D]: query heads, key heads, value heads. cos, sin: [N, D] in the model's dtype. q_norm,
    k_norm: gains [D] of an RMS norm of each query and key head before it is rotated, or None; eps is that norm's.
    """

    rows: Tensor
    num_heads: int
    cos: Tensor
    sin: Tensor
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    eps: float = 0.0

    @property
    def head_dim(self) -> int:
        """D."""
        return self.cos.shape[1]

    def rotated(self) -> tuple[Tensor, Tensor, Tensor]:
        """q [N, Hq, D] and k [N, Hkv, D], normed and rotated, and v [N, Hkv, D]; rounds where transformers rounds."""
        heads = self.rows.view(len(self.rows), -1, self.head_dim)
        kv_heads = (heads.shape[1] - self.num_heads) // 2
        q, k, v = torch.split(heads, [self.num_heads, kv_heads, kv_heads], dim=1)
        return self._rotated(q, self.q_norm), self._rotated(k, self.k_norm), v

    def _rotated(self, x: Tensor, gain: Tensor | None) -> Tensor:
        if gain is not None:
            wide = x.float()
            x = gain * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return x * self.cos[:, None] + torch.cat((-second, first), dim=-1) * self.sin[:, None]
