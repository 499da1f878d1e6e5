"""All layers of a decoder over keys that all lie in the own pool, in one native call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from distkv.kernels.backend import AttentionMetadata
from distkv.kernels.cpu.functions import LayerParts, LayersCall
from distkv.kernels.cpu.layer_tail import LayerTailWeights, part_of
from distkv.kernels.cpu.library import Native
from distkv.kernels.cpu.linear import NativeLinear
from distkv.kernels.cpu.native_backend import DTYPES, sequences_of
from distkv.kernels.fused_qkv import FusedQkv
from distkv.kernels.layout import LayerKv


@dataclass(frozen=True, slots=True)
class LocalLayer:
    """One layer: what attention needs, and the weights of its tail. window: in tokens, or None."""

    q_norm: Tensor | None
    k_norm: Tensor | None
    kv: LayerKv
    window: int | None
    tail: LayerTailWeights


class NativeLayers:
    """See native/layers.h. scale: of attention scores."""

    def __init__(self, native: Native, layers: Sequence[LocalLayer], scale: float) -> None:
        self._run, self._kept = native.layers, layers
        self._parts = (LayerParts * len(layers))(*map(_parts_of, layers))
        kv = layers[0].kv
        self._call = LayersCall(
            layers=ctypes.addressof(self._parts),
            num_layers=len(layers),
            slot_bytes=kv.k.stride(0) * kv.k.element_size(),
            type=DTYPES[kv.k.dtype],
            pair=kv.k.shape[4],
            kv_heads=kv.kv_heads,
            dim=kv.head_dim,
            block_tokens=kv.block_tokens,
            scale=scale,
            eps=layers[0].tail.eps,
        )

    @staticmethod
    def can_run(layers: Sequence[LocalLayer]) -> bool:
        """Whether all weights are the native library's."""
        weights = [layer.tail for layer in layers]
        linears = [one for w in weights for one in (w.o, w.gate_up, w.down, w.next_qkv) if one is not None]
        return all(isinstance(one, NativeLinear) for one in linears)

    def __call__(
        self, x: Tensor, qkv: FusedQkv, metadata: AttentionMetadata, slots: Tensor, offsets: Tensor, wanted: Tensor
    ) -> Tensor:
        """x: [N, hidden], the embedded tokens; qkv: of the first layer. Both are overwritten. metadata: the rows of
        its sequences follow each other and are all N. slots, offsets: int64 [N], where the K and V of each row are
        stored. wanted: int64 [M].

        Returns the normed hidden states of the wanted rows, [M, hidden]. Raises MemoryError.
        """
        call = LayersCall.from_buffer_copy(self._call)
        seqs = sequences_of(metadata)
        out = torch.empty(len(wanted), x.shape[1], dtype=x.dtype)
        call.x, call.found, call.out = x.data_ptr(), qkv.rows.data_ptr(), out.data_ptr()
        call.cos, call.sin = qkv.cos.data_ptr(), qkv.sin.data_ptr()
        call.positions, call.slots, call.offsets = metadata.positions.data_ptr(), slots.data_ptr(), offsets.data_ptr()
        call.wanted, call.seqs = wanted.data_ptr(), seqs.address
        call.num_rows, call.num_wanted, call.num_seqs = len(x), len(wanted), seqs.count
        call.heads = qkv.num_heads
        if self._run(ctypes.byref(call)):
            raise MemoryError("the layers found no memory for their activations")
        return out


def _parts_of(layer: LocalLayer) -> LayerParts:
    weights = layer.tail
    return LayerParts(
        o=part_of(weights.o),
        gate_up=part_of(weights.gate_up),
        down=part_of(weights.down),
        next=part_of(weights.next_qkv),
        mlp_norm=weights.mlp_norm.data_ptr(),
        next_norm=weights.next_norm.data_ptr(),
        q_norm=None if layer.q_norm is None else layer.q_norm.data_ptr(),
        k_norm=None if layer.k_norm is None else layer.k_norm.data_ptr(),
        k=layer.kv.k.data_ptr(),
        v=layer.kv.v.data_ptr(),
        window=layer.window or 0,
    )
