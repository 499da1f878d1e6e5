"""Linear layers: what a model needs of one, and torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor


class Linear(Protocol):
    """y = x · Wᵀ + bias, of some W [out, in]."""

    def __call__(self, x: Tensor, /) -> Tensor:
        """x: [N, in] in the weights' dtype. Returns [N, out] in the same, rounded once."""


MakeLinear = Callable[[Tensor, Tensor | None], Linear]
"""(W [out, in], bias [out] or None) → what computes with them; see `Backend.linear`."""


class TorchLinear:
    """A Linear that needs nothing but torch; it keeps W."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor, /) -> Tensor:
        """See Linear."""
        # On CPUs with AMX, oneDNN pads rows of odd width with what stands behind them, and 0 times NaN is NaN.
        return F.linear(x.contiguous(), self.weight, self.bias)
