"""The Backend of the native library, for one level of CPUs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from distkv.errors import ConfigError
from distkv.kernels.attention.attention_metadata import AttentionMetadata
from distkv.kernels.attention.layout import LayerKv, PanelKv
from distkv.kernels.attention.merge import Partial
from distkv.kernels.backend import Backend
from distkv.kernels.cpu.calls.attend_calls import AttendCalls
from distkv.kernels.cpu.calls.functions import DTYPES, AttendCall, StoreCall
from distkv.kernels.cpu.calls.library import Native
from distkv.kernels.cpu.calls.sequences import sequences_of
from distkv.kernels.cpu.exchange import NativeExchanges
from distkv.kernels.cpu.huge_pages import HugePages
from distkv.kernels.cpu.layer.layer_tail import NativeLayerTail
from distkv.kernels.cpu.layer.layers import NativeLayers
from distkv.kernels.cpu.layer.linear import NativeLinear
from distkv.kernels.cpu.layer.ops import NativeOps
from distkv.kernels.layer.fused_qkv import FusedQkv
from distkv.kernels.layer.layer_tail import LayerTail, LayerTailWeights
from distkv.kernels.layer.layers import Layer, Layers
from distkv.kernels.layer.linear import Linear


class NativeBackend(Backend):
    """A Backend of one dispatch level. See native/attention.h for how a call is divided."""

    layout: type[LayerKv] = PanelKv

    def __init__(self, native: Native) -> None:
        self.name, self._native = native.level, native
        self.ops = NativeOps(native)
        self._weights = HugePages()
        self._attend, self._merge, self._store = native.attend, native.merge, native.store

    def attend(
        self,
        q: Tensor,
        kv: LayerKv,
        metadata: AttentionMetadata,
        scale: float,
        window: int | None = None,
        alibi: Tensor | None = None,
        *,
        serving: bool = False,
    ) -> Partial:
        """See Backend. Raises MemoryError."""
        heads, dim = q.shape[1:]
        if q.stride(2) != 1 or q.stride(1) != dim:
            q = q.contiguous()
        seqs = sequences_of(metadata)
        out = torch.empty(seqs.num_rows, heads, dim)
        lse = torch.empty(seqs.num_rows, heads)
        call = AttendCall(
            q=q.data_ptr(),
            q_positions=metadata.positions.data_ptr(),
            k=kv.k.data_ptr(),
            v=kv.v.data_ptr(),
            alibi=0 if alibi is None else alibi.data_ptr(),
            out=out.data_ptr(),
            lse=lse.data_ptr(),
            seqs=seqs.address,
            q_stride=q.stride(0),
            slot_bytes=kv.k.stride(0) * kv.k.element_size(),
            window=window or 0,
            num_seqs=seqs.count,
            q_type=DTYPES[q.dtype],
            kv_type=DTYPES[kv.k.dtype],
            pair=kv.k.shape[4],
            heads=heads,
            kv_heads=kv.kv_heads,
            dim=dim,
            block_tokens=kv.block_tokens,
            serving=serving,
            scale=scale,
        )
        if self._attend(ctypes.byref(call)):
            raise MemoryError("micro-attention found no memory for its partials")
        return out, lse

    def merge(self, partials: Sequence[Partial]) -> Partial:
        """See Backend."""
        if len(partials) == 1:
            return partials[0]
        parts = [(out.contiguous(), lse.contiguous()) for out, lse in partials]
        out, lse = torch.empty_like(parts[0][0]), torch.empty_like(parts[0][1])
        pointers = ctypes.c_void_p * len(parts)
        outs = pointers(*(part.data_ptr() for part, _ in parts))
        lses = pointers(*(part.data_ptr() for _, part in parts))
        self._merge(outs, lses, len(parts), lse.numel(), out.shape[-1], out.data_ptr(), lse.data_ptr())
        return out, lse

    def store(self, qkv: FusedQkv, kv: LayerKv, slots: Tensor, offsets: Tensor) -> Tensor:
        """See Backend."""
        rows = qkv.rows
        q = torch.empty(len(rows), qkv.num_heads, qkv.head_dim, dtype=rows.dtype)
        call = StoreCall(
            rows=rows.data_ptr(),
            cos=qkv.cos.data_ptr(),
            sin=qkv.sin.data_ptr(),
            q_norm=0 if qkv.q_norm is None else qkv.q_norm.data_ptr(),
            k_norm=0 if qkv.k_norm is None else qkv.k_norm.data_ptr(),
            q=q.data_ptr(),
            k=kv.k.data_ptr(),
            v=kv.v.data_ptr(),
            slots=slots.data_ptr(),
            offsets=offsets.data_ptr(),
            num_rows=len(rows),
            row_stride=rows.stride(0),
            slot_bytes=kv.k.stride(0) * kv.k.element_size(),
            type=DTYPES[rows.dtype],
            pair=kv.k.shape[4],
            heads=qkv.num_heads,
            kv_heads=kv.kv_heads,
            dim=qkv.head_dim,
            block_tokens=kv.block_tokens,
            eps=qkv.eps,
        )
        if self._store(ctypes.byref(call)):
            raise MemoryError("keys and values found no memory on their way to the pool")
        return q

    def linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """See Backend."""
        return NativeLinear(self._native, weight, bias, self._weights)

    def linear_name(self, dtype: torch.dtype) -> str:
        """See Backend."""
        return "native"

    def layer_tail(self, weights: LayerTailWeights) -> LayerTail:
        """See Backend. One call where all its linear layers are the native library's."""
        return (
            NativeLayerTail(self._native, weights) if NativeLayerTail.can_run(weights) else super().layer_tail(weights)
        )

    def layers_of(self, layers: Sequence[Layer], scale: float) -> Layers | None:
        """See Backend."""
        return NativeLayers(self._native, layers, scale) if NativeLayers.can_run(layers) else None

    def exchanges(
        self, kvs: Sequence[LayerKv], windows: Sequence[int | None], scale: float, heads: int, q_dtype: torch.dtype
    ) -> NativeExchanges | None:
        """See Backend."""
        if not self._native.has_exchange:
            return None
        return NativeExchanges(self._native, AttendCalls(kvs, windows, scale, heads, q_dtype))

    def use_threads(self, threads: int, cores: Sequence[int]) -> None:
        """See Backend. The caller's thread, which has other things to do as well, is not bound to a core. Raises
        ConfigError where the system gives too few threads."""
        if self._native.set_threads(threads, (ctypes.c_int * len(cores))(*cores), len(cores)):
            raise ConfigError(
                "threads",
                f"the system gives this process too few threads to compute with {threads}",
                "each takes up to four; name fewer, or raise the limit: ulimit -u, or the pids limit of the container",
            )
        super().use_threads(threads, cores)
