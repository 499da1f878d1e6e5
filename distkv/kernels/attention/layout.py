"""How K and V of one layer lie in a pool. A block and KV head has P·D numbers of each; the order is the backends'."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class LayerKv(ABC):
    """One layer of a pool, as views into its memory.

    name: of the order, part of what instances must have in common to read each other's rBlocks.
    """

    name: ClassVar[str]

    k: Tensor
    v: Tensor

    @classmethod
    @abstractmethod
    def of(cls, k: Tensor, v: Tensor, head_dim: int, block_tokens: int) -> Self:
        """Views of k, v [slots, Hkv, P·D], whatever they hold."""

    @property
    def kv_heads(self) -> int:
        """Hkv."""
        return self.k.shape[1]

    @property
    @abstractmethod
    def block_tokens(self) -> int:
        """P."""

    @property
    def head_dim(self) -> int:
        """D."""
        return self.v.shape[3]

    @abstractmethod
    def keys(self, slots: Tensor | slice) -> Tensor:
        """[B, Hkv, P, D], a view or a copy. slots: int64 [B] or a slice of B."""

    @abstractmethod
    def values(self, slots: Tensor | slice) -> Tensor:
        """[B, Hkv, P, D], a view or a copy."""

    @abstractmethod
    def write(self, slots: Tensor, offsets: Tensor, k: Tensor, v: Tensor) -> None:
        """Store N tokens. slots, offsets: int64 [N], block and place in it. k, v: [N, Hkv, D]."""


@dataclass(frozen=True)
class PanelKv(LayerKv):
    """For CPUs: panels, so that a vector register holds one number of many keys.

    K of a block and head is [D/p, P, p] and V is [P/p, D, p], where p numbers share 32 bits: 2 for 16-bit types, 1 for
    float32, and for blocks of an odd number of tokens. Keys become lanes of a vector and need no sum across it; values
    have their dimensions as lanes.
    """

    name: ClassVar[str] = "panel"

    @classmethod
    def of(cls, k: Tensor, v: Tensor, head_dim: int, block_tokens: int) -> Self:
        """See LayerKv."""
        pair = 2 if k.dtype.itemsize == 2 and block_tokens % 2 == 0 else 1
        return cls(
            k.view(*k.shape[:-1], head_dim // pair, block_tokens, pair),
            v.view(*v.shape[:-1], block_tokens // pair, head_dim, pair),
        )

    @property
    def pair(self) -> int:
        """p."""
        return self.k.shape[4]

    @property
    def block_tokens(self) -> int:
        """See LayerKv."""
        return self.k.shape[3]

    def keys(self, slots: Tensor | slice) -> Tensor:
        """See LayerKv."""
        return self.k[slots].transpose(2, 3).flatten(3)

    def values(self, slots: Tensor | slice) -> Tensor:
        """See LayerKv."""
        return self.v[slots].transpose(3, 4).flatten(2, 3)

    def write(self, slots: Tensor, offsets: Tensor, k: Tensor, v: Tensor) -> None:
        """See LayerKv."""
        self.k[slots, :, :, offsets] = k.reshape(*k.shape[:-1], -1, self.pair)
        self.v[slots, :, offsets // self.pair, :, offsets % self.pair] = v


@dataclass(frozen=True)
class RowKv(LayerKv):
    """For GPUs: K and V of a block and head are [P, D], the numbers of a token side by side."""

    name: ClassVar[str] = "row"

    @classmethod
    def of(cls, k: Tensor, v: Tensor, head_dim: int, block_tokens: int) -> Self:
        """See LayerKv."""
        return cls(*(half.view(*half.shape[:-1], block_tokens, head_dim) for half in (k, v)))

    @property
    def block_tokens(self) -> int:
        """See LayerKv."""
        return self.k.shape[2]

    def keys(self, slots: Tensor | slice) -> Tensor:
        """See LayerKv."""
        return self.k[slots]

    def values(self, slots: Tensor | slice) -> Tensor:
        """See LayerKv."""
        return self.v[slots]

    def write(self, slots: Tensor, offsets: Tensor, k: Tensor, v: Tensor) -> None:
        """See LayerKv. Numbers that the pool's type cannot hold become its largest."""
        if self.k.dtype.itemsize == 1:
            limit = torch.finfo(self.k.dtype).max
            k, v = (half.clamp(-limit, limit) for half in (k, v))
        self.k[slots, :, offsets] = k.to(self.k.dtype)
        self.v[slots, :, offsets] = v.to(self.v.dtype)
