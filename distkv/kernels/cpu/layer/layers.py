"""All layers of a decoder in one call of the native library."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from distkv.kernels.attention.attention_metadata import AttentionMetadata
from distkv.kernels.cpu.calls.functions import DTYPES, LayerParts, LayersCall
from distkv.kernels.cpu.calls.library import Native
from distkv.kernels.cpu.calls.sequences import sequences_of
from distkv.kernels.cpu.exchange import NativeExchange
from distkv.kernels.cpu.layer.layer_tail import NativeLayerTail, part_of
from distkv.kernels.exchange import Exchange
from distkv.kernels.layer.fused_qkv import FusedQkv
from distkv.kernels.layer.layers import Layer, Passed


class NativeLayers:
    """See Layers and native/layers.h. scale: of attention scores."""

    def __init__(self, native: Native, layers: Sequence[Layer], scale: float) -> None:
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
    def can_run(layers: Sequence[Layer]) -> bool:
        """Whether all weights are the native library's."""
        return all(NativeLayerTail.can_run(layer.tail) for layer in layers)

    def __call__(
        self, x: Tensor, qkv: FusedQkv, metadata: AttentionMetadata, slots: Tensor, offsets: Tensor, wanted: Tensor
    ) -> Tensor:
        """See Layers."""
        call, out = self._call_of(x, qkv, metadata, slots, offsets, wanted)
        self._called(call)
        return out

    def exchanging(
        self,
        x: Tensor,
        qkv: FusedQkv,
        metadata: AttentionMetadata,
        slots: Tensor,
        offsets: Tensor,
        wanted: Tensor,
        exchange: Exchange,
    ) -> Passed:
        """See Layers."""
        assert isinstance(exchange, NativeExchange)
        call, out = self._call_of(x, qkv, metadata, slots, offsets, wanted)
        exchange.have_done(call)
        is_done = self._called(call) == 0
        last = call.num_layers - 1 if is_done else call.stopped_at
        came_to = [exchange.exchanged(layer, is_done=is_done or layer < last) for layer in range(last + 1)]
        return Passed(out if is_done else None, came_to)

    def _call_of(
        self, x: Tensor, qkv: FusedQkv, metadata: AttentionMetadata, slots: Tensor, offsets: Tensor, wanted: Tensor
    ) -> tuple[LayersCall, Tensor]:
        """And where its results go. Good as long as what it was given."""
        call = LayersCall.from_buffer_copy(self._call)
        seqs = sequences_of(metadata)
        out = torch.empty(len(wanted), x.shape[1], dtype=x.dtype)
        call.x, call.found, call.out = x.data_ptr(), qkv.rows.data_ptr(), out.data_ptr()
        call.cos, call.sin = qkv.cos.data_ptr(), qkv.sin.data_ptr()
        call.positions, call.slots, call.offsets = metadata.positions.data_ptr(), slots.data_ptr(), offsets.data_ptr()
        call.wanted, call.seqs = wanted.data_ptr(), seqs.address
        call.num_rows, call.num_wanted, call.num_seqs = len(x), len(wanted), seqs.count
        call.heads = qkv.num_heads
        return call, out

    def _called(self, call: LayersCall) -> int:
        found = int(self._run(ctypes.byref(call)))
        if found == 1:
            raise MemoryError("the layers found no memory for their activations")
        return found


def _parts_of(layer: Layer) -> LayerParts:
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
