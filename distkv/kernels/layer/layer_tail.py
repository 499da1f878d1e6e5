"""The tail of a layer: everything from its attention to the projections of the next layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from distkv.kernels.layer.linear import Linear
from distkv.kernels.layer.ops import Ops


class LayerTail(Protocol):
    """Rounds where transformers rounds."""

    def __call__(self, x: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        """x: [N, hidden], the residual stream, which may be overwritten. attended: float32 [N, Hq, D], contiguous.

        Returns the residual stream after the layer, and the next layer's heads [N, (Hq + 2·Hkv)·D]; after the last
        layer the normed hidden states [N, hidden].
        """


@dataclass(frozen=True, slots=True)
class LayerTailWeights:
    """What the tail of a layer computes with. next_norm, next_qkv: the first norm and projection of the next layer;
    after the last layer the final norm, and None."""

    o: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    next_norm: Tensor
    next_qkv: Linear | None
    eps: float


class StepwiseLayerTail:
    """A LayerTail of separate calls."""

    def __init__(self, weights: LayerTailWeights, ops: Ops) -> None:
        self._weights, self._ops = weights, ops

    def __call__(self, x: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        """See LayerTail."""
        ops, weights = self._ops, self._weights
        projected = weights.o(attended.to(x.dtype).flatten(1))
        x, normal = ops.add_rms_norm(x, projected, weights.mlp_norm, weights.eps)
        product = ops.silu_mul(weights.gate_up(normal))
        x, normal = ops.add_rms_norm(x, weights.down(product), weights.next_norm, weights.eps)
        return x, normal if weights.next_qkv is None else weights.next_qkv(normal)
