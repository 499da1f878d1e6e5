"""ScaleReduce: partials over disjoint keys become the attention over all of them (000 §4.2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Partial = tuple[Tensor, Tensor]
"""(out [T, Hq, D], lse [T, Hq]): attention over some keys, and the natural log of the sum of their exponentials."""


def empty_partial(num_rows: int, num_heads: int, head_dim: int, dtype: torch.dtype = torch.float32) -> Partial:
    """The partial over no keys: (0, −inf), the identity of `merge`."""
    return (
        torch.zeros(num_rows, num_heads, head_dim, dtype=dtype),
        torch.full((num_rows, num_heads), -torch.inf, dtype=dtype),
    )


def merge(partials: Sequence[Partial]) -> Partial:
    """Combine partials of the same queries over disjoint keys, in the order given; at least one.

    Commutative and associative up to rounding, exact for the identity. The inputs are left as they are.
    """
    if len(partials) == 1:
        return partials[0]
    peak = partials[0][1]
    for _, lse in partials[1:]:
        peak = torch.maximum(peak, lse)
    # Rows that no partial has keys for: any finite peak makes every weight exp(-inf) = 0.
    peak = peak.clamp_min(torch.finfo(peak.dtype).min)
    weights = [torch.exp(lse - peak) for _, lse in partials]
    total = weights[0].clone()
    out = partials[0][0] * weights[0][..., None]
    for (part, _), weight in zip(partials[1:], weights[1:], strict=True):
        total += weight
        out.addcmul_(part, weight[..., None])
    # The largest weight is 1, so a total is 0 or at least 1.
    return out.div_(total.clamp_min(1.0)[..., None]), peak + torch.log(total)
