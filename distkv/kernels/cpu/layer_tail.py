"""The tail of a layer: everything from its attention to the projections of the next layer."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from distkv.kernels.cpu.dispatch import Choice
from distkv.kernels.cpu.functions import LayerTailCall, LinearPart
from distkv.kernels.cpu.library import Native
from distkv.kernels.cpu.linear import Linear, NativeLinear
from distkv.kernels.cpu.native_backend import DTYPES
from distkv.kernels.cpu.ops import Ops, ops_of


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


def layer_tail_of(choice: Choice, weights: LayerTailWeights) -> LayerTail:
    """One native call where all linear layers are the native library's, else step by step."""
    linears = (weights.o, weights.gate_up, weights.down, weights.next_qkv)
    if choice.native is not None and all(one is None or isinstance(one, NativeLinear) for one in linears):
        return NativeLayerTail(choice.native, weights)
    return StepwiseLayerTail(weights, ops_of(choice))


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


class NativeLayerTail:
    """A LayerTail of one native call; see native/between.h. It writes into x. Raises MemoryError."""

    def __init__(self, native: Native, weights: LayerTailWeights) -> None:
        self._run, self._weights = native.between, weights
        self._call = LayerTailCall(
            mlp_norm=weights.mlp_norm.data_ptr(),
            next_norm=weights.next_norm.data_ptr(),
            o=part_of(weights.o),
            gate_up=part_of(weights.gate_up),
            down=part_of(weights.down),
            next=part_of(weights.next_qkv),
            dtype=DTYPES[weights.mlp_norm.dtype],
            eps=weights.eps,
        )
        self._width = self._call.next.n if weights.next_qkv is not None else self._call.o.n

    def __call__(self, x: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        """See LayerTail."""
        call = LayerTailCall.from_buffer_copy(self._call)
        out = torch.empty(len(x), self._width, dtype=x.dtype)
        call.attended, call.x, call.out = attended.data_ptr(), x.data_ptr(), out.data_ptr()
        call.rows = len(x)
        if self._run(ctypes.byref(call)):
            raise MemoryError("a layer found no memory for its activations")
        return x, out


def part_of(linear: Linear | None) -> LinearPart:
    """What native calls know of a layer; nothing of one that is not the native library's."""
    return linear.part if isinstance(linear, NativeLinear) else LinearPart()
