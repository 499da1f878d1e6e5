"""The tail of a layer in one call of the native library."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from distkv.kernels.cpu.calls.functions import DTYPES, LayerTailCall, LinearPart
from distkv.kernels.cpu.calls.library import Native
from distkv.kernels.cpu.layer.linear import NativeLinear
from distkv.kernels.layer.layer_tail import LayerTailWeights
from distkv.kernels.layer.linear import Linear


class NativeLayerTail:
    """See LayerTail and native/layer_tail.h. It writes into x. Raises MemoryError."""

    @staticmethod
    def can_run(weights: LayerTailWeights) -> bool:
        """Whether all weights are the native library's."""
        linears = (weights.o, weights.gate_up, weights.down, weights.next_qkv)
        return all(one is None or isinstance(one, NativeLinear) for one in linears)

    def __init__(self, native: Native, weights: LayerTailWeights) -> None:
        self._run, self._weights = native.layer_tail, weights
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
    """Where the weights of a native linear layer lie; null pointers for any other."""
    return linear.part if isinstance(linear, NativeLinear) else LinearPart()
