"""A call of micro-attention for each layer of a pool, as the native library reads it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from distkv.kernels.attention.attention_metadata import AttentionMetadata
from distkv.kernels.attention.layout import LayerKv
from distkv.kernels.cpu.calls.functions import DTYPES, AttendCall
from distkv.kernels.cpu.calls.sequences import sequences_of


class AttendCalls:
    """What is the same in every step. windows: per layer."""

    SIZE = ctypes.sizeof(AttendCall)

    def __init__(
        self,
        kvs: Sequence[LayerKv],
        windows: Sequence[int | None],
        scale: float,
        heads: int,
        q_dtype: torch.dtype,
    ) -> None:
        self.heads, self.dim, self.q_dtype = heads, kvs[0].head_dim, q_dtype
        self.num_layers = len(kvs)
        self._kept = kvs
        self._calls = (AttendCall * len(kvs))()
        for call, kv, window in zip(self._calls, kvs, windows, strict=True):
            call.k, call.v = kv.k.data_ptr(), kv.v.data_ptr()
            call.slot_bytes = kv.k.stride(0) * kv.k.element_size()
            call.q_stride, call.window = heads * self.dim, window or 0
            call.q_type, call.kv_type, call.pair = DTYPES[q_dtype], DTYPES[kv.k.dtype], kv.k.shape[4]
            call.heads, call.kv_heads, call.dim = heads, kv.kv_heads, self.dim
            call.block_tokens, call.scale = kv.block_tokens, scale
        self._of_layers = [(call.k, call.v, call.window) for call in self._calls]

    def one_over(self, metadata: AttentionMetadata, out: Tensor, lse: Tensor) -> AttendCall:
        """One for all layers in turn, without what `of_layer` has, and its queries; likewise."""
        call = AttendCall.from_buffer_copy(self._calls[0])
        seqs = sequences_of(metadata)
        call.q_positions, call.out, call.lse = metadata.positions.data_ptr(), out.data_ptr(), lse.data_ptr()
        call.seqs, call.num_seqs = seqs.address, seqs.count
        return call

    def of_layer(self, layer: int) -> tuple[int, int, int]:
        """k, v and window."""
        return self._of_layers[layer]

    def over(self, metadata: AttentionMetadata, out: Tensor, lse: Tensor) -> Any:
        """One for each layer, for a peer, without its queries; good as long as metadata, out and lse are."""
        calls = type(self._calls).from_buffer_copy(self._calls)
        seqs = sequences_of(metadata)
        first, positions = calls[0], metadata.positions.data_ptr()
        first.q_positions, first.out, first.lse = positions, out.data_ptr(), lse.data_ptr()
        first.seqs, first.num_seqs, first.serving = seqs.address, seqs.count, True
        for call in calls[1:]:
            call.q_positions, call.out, call.lse = first.q_positions, first.out, first.lse
            call.seqs, call.num_seqs, call.serving = first.seqs, first.num_seqs, True
        return calls
