"""The Backend of the native library: micro-attention, ScaleReduce and the storing of new tokens."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from distkv.kernels.backend import AttentionMetadata
from distkv.kernels.cpu.functions import AttendCall, AttendSeq, StoreCall
from distkv.kernels.cpu.library import Native
from distkv.kernels.fused_qkv import FusedQkv
from distkv.kernels.layout import LayerKv, PanelKv
from distkv.kernels.merge import Partial

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""As in native/attend.h."""


class NativeBackend:
    """A Backend of one dispatch level. See native/attention.h for how a call is divided."""

    layout: type[LayerKv] = PanelKv

    def __init__(self, native: Native) -> None:
        self.name = native.level
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
        self._store(ctypes.byref(call))
        return q


class Sequences:
    """The sequences of a call as the library wants them; keeps what it points to alive."""

    def __init__(self, metadata: AttentionMetadata) -> None:
        self.count = len(metadata.rows)
        self.num_rows = 0
        self._kept = [(blocks.slot_index, blocks.starts) for blocks in metadata.block_tables]
        self._seqs = (AttendSeq * self.count)()
        for seq, rows, blocks, (slots, starts) in zip(
            self._seqs, metadata.rows, metadata.block_tables, self._kept, strict=True
        ):
            seq.slots, seq.positions = slots.data_ptr(), starts.data_ptr()
            seq.num_blocks, seq.num_keys = len(blocks), blocks.num_keys
            seq.first_row, seq.num_rows, seq.out_row = rows.start, len(rows), self.num_rows
            self.num_rows += len(rows)
        self.address = ctypes.addressof(self._seqs)


def sequences_of(metadata: AttentionMetadata) -> Sequences:
    """Made once per table."""
    found: Sequences | None = metadata.prepared.get("native")
    if found is None:
        found = metadata.prepared["native"] = Sequences(metadata)
    return found
