"""How K and V of one layer lie in a pool of a CPU: in panels, so that a vector register holds one number of many keys.

K of a block and head is [D/p, P, p] and V is [P/p, D, p], where p numbers share 32 bits: 2 for 16-bit types, 1 for
float32, and for blocks of an odd number of tokens. Keys become lanes of a vector and need no sum across it; values
have their dimensions as lanes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def pair_of(dtype: torch.dtype, block_tokens: int) -> int:
    """p of a pool."""
    return 2 if dtype.itemsize == 2 and block_tokens % 2 == 0 else 1


@dataclass(frozen=True)
class LayerKv:
    """One layer of a pool. k: [slots, Hkv, D/p, P, p]. v: [slots, Hkv, P/p, D, p]; views into the same memory."""

    k: Tensor
    v: Tensor

    @classmethod
    def of(cls, k: Tensor, v: Tensor, head_dim: int, block_tokens: int) -> LayerKv:
        """Views of k, v [slots, Hkv, P·D], whatever they hold."""
        pair = pair_of(k.dtype, block_tokens)
        return cls(
            k.view(*k.shape[:-1], head_dim // pair, block_tokens, pair),
            v.view(*v.shape[:-1], block_tokens // pair, head_dim, pair),
        )

    @property
    def kv_heads(self) -> int:
        """Hkv."""
        return self.k.shape[1]

    @property
    def block_tokens(self) -> int:
        """P."""
        return self.k.shape[3]

    @property
    def head_dim(self) -> int:
        """D."""
        return self.v.shape[3]

    def keys(self, slots: Tensor | slice) -> Tensor:
        """[B, Hkv, P, D], a view or a copy. slots: int64 [B] or a slice of B."""
        return self.k[slots].transpose(2, 3).flatten(3)

    def values(self, slots: Tensor | slice) -> Tensor:
        """[B, Hkv, P, D], a view or a copy."""
        return self.v[slots].transpose(3, 4).flatten(2, 3)

    def write(self, slots: Tensor, offsets: Tensor, k: Tensor, v: Tensor) -> None:
        """Store N tokens. slots, offsets: int64 [N], block and place in it. k, v: [N, Hkv, D]."""
        pair = self.k.shape[4]
        self.k[slots, :, :, offsets] = k.reshape(*k.shape[:-1], -1, pair)
        self.v[slots, :, offsets // pair, :, offsets % pair] = v
