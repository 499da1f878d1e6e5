"""The Backend in Triton: for CUDA devices, and on the CPU for Triton's interpreter."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distkv.kernels.attention.attention_metadata import AttentionMetadata
from distkv.kernels.attention.layout import LayerKv, RowKv
from distkv.kernels.attention.merge import Partial
from distkv.kernels.attention.static_decode import StaticDecode, StaticInputs
from distkv.kernels.backend import Backend
from distkv.kernels.checksum import has_sums
from distkv.kernels.layer.fused_qkv import FusedQkv
from distkv.kernels.layer.linear import Linear
from distkv.kernels.mail_table import MailTable
from distkv.kernels.mailbox import Lane
from distkv.kernels.triton.attention.decode import decode_attention
from distkv.kernels.triton.attention.decode_plan import DecodePlan, decode_plan
from distkv.kernels.triton.attention.prefill import prefill_attention
from distkv.kernels.triton.attention.prefill_tiles import FEW_PAIRS, Tiles
from distkv.kernels.triton.attention.static_decode import TritonStaticDecode
from distkv.kernels.triton.attention.templates import SPLIT_KEYS, Shape, count_sms
from distkv.kernels.triton.checksum import sums_of_blocks
from distkv.kernels.triton.copy import copy_blocks, gather_blocks, scatter_blocks
from distkv.kernels.triton.first_launches import launch_attention
from distkv.kernels.triton.layer.likeliest import likeliest
from distkv.kernels.triton.layer.linear import TritonLinear
from distkv.kernels.triton.layer.ops import TritonOps
from distkv.kernels.triton.layer.store import store_qkv
from distkv.kernels.triton.mail_table import post_rows, take_rows
from distkv.kernels.triton.mailbox import post_mail, take_mail
from distkv.kernels.triton.merge import merge_partials
from distkv.kernels.triton.metadata import Column, DeviceMetadata, device_metadata, to_device
from distkv.kernels.triton.tuning.tuned_table import TunedTable

_DECODE_ROWS = 2
"""Entries of at most so many rows read their keys once per row; more share a tile of the prefill kernel."""


_USUAL_KEYS, _LONG_KEYS = 4096, 2 * SPLIT_KEYS
"""What is measured for such rows holds in graphs for those up to SPLIT_KEYS, most of which are short, and for longer
ones."""

_FP8_CAPABILITY = (8, 9)
"""From Ada on, GPUs convert e4m3."""


@dataclass(frozen=True)
class _Entries:
    """Which entries of the metadata go where. decode: indices. prefill: int32 on the device."""

    decode: NDArray[np.intp]
    prefill: Tensor | None
    prefill_rows: int


class TritonBackend(Backend):
    """A Backend over RowKv. All tensors of a call lie on one device, and its kernels run on the current stream.

    Triton's interpreter, unlike its compiler, takes calls from one thread at a time.
    """

    name = "triton"
    layout: type[LayerKv] = RowKv
    has_fp8 = True
    static_keys: tuple[int, ...] = (SPLIT_KEYS, 2**31 - 1)
    ops = TritonOps()

    def __init__(self, tuned: TunedTable | None = None, index: int | None = None) -> None:
        """tuned: measured configs, by default those that a tuning run left on this machine for its GPU, the current one
        or that of an index."""
        if tuned is None:
            tuned = TunedTable.load(torch.cuda.get_device_name(index)) if torch.cuda.is_available() else TunedTable()
        self._tuned = tuned
        if torch.cuda.is_available():
            self.has_fp8 = torch.cuda.get_device_capability(index) >= _FP8_CAPABILITY

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
        """See Backend. A peer's queries go before the own step if the stream they are on does."""
        if not metadata.rows:
            return q.new_empty(q[:0].shape, dtype=torch.float32), q.new_empty(q[:0, :, 0].shape, dtype=torch.float32)
        there = device_metadata(metadata, q.device)
        entries = _entries(there)
        if q.stride()[1:] != (q.shape[2], 1):
            q = q.contiguous()
        plan = self._plan(there, entries, Shape.of(q, kv.k), window)
        num_rows = there.num_out_rows + (plan.num_parts if plan else 0)
        out = torch.empty(num_rows, *q.shape[1:], dtype=torch.float32, device=q.device)
        lse = torch.empty(num_rows, q.shape[1], dtype=torch.float32, device=q.device)
        self._launch(q, kv, there, plan, entries, (out, lse), scale, window, alibi)
        return out[: there.num_out_rows], lse[: there.num_out_rows]

    def _launch(
        self,
        q: Tensor,
        kv: LayerKv,
        metadata: DeviceMetadata,
        plan: DecodePlan | None,
        entries: _Entries,
        into: Partial,
        scale: float,
        window: int | None,
        alibi: Tensor | None,
    ) -> None:
        out, lse = into
        if plan:
            decode_attention(q, kv.k, kv.v, metadata, plan, out, lse, scale, window, alibi)
        if entries.prefill is not None:
            rows = entries.prefill_rows
            tiles = self._tiles(metadata, Shape.of(q, kv.k), rows) if alibi is None else None
            prefill_attention(
                q, kv.k, kv.v, metadata, entries.prefill, rows, out, lse, scale, window, alibi, tiles=tiles
            )

    def merge(self, partials: Sequence[Partial]) -> Partial:
        """See Backend."""
        return merge_partials(partials)

    def store(self, qkv: FusedQkv, kv: LayerKv, slots: Tensor, offsets: Tensor) -> Tensor:
        """See Backend."""
        assert isinstance(kv, RowKv)
        return store_qkv(qkv, kv, slots, offsets)

    def linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """See Backend."""
        return TritonLinear(weight, bias)

    def linear_name(self, dtype: torch.dtype) -> str:
        """See Backend: of more than a few rows."""
        return "cublas" if torch.cuda.is_available() else "torch"

    def likeliest(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See Backend."""
        return likeliest(logits)

    def warm_up(self, num_heads: int, kv: LayerKv, dtype: torch.dtype, windows: Collection[int | None]) -> int:
        """See Backend."""
        return launch_attention(self._tuned, num_heads, kv, dtype, windows)

    def static_decode(self, inputs: StaticInputs, kv: LayerKv, most_keys: int) -> StaticDecode:
        """See Backend."""
        shape = Shape.of(inputs.attended, kv.k)
        keys = _USUAL_KEYS if most_keys <= SPLIT_KEYS else _LONG_KEYS
        config = self._tuned.config(shape, keys, len(inputs.attended))
        return TritonStaticDecode(inputs, shape, config, count_sms(inputs.attended.device), most_keys)

    def gather_blocks(self, pool: Tensor, slots: Tensor) -> Tensor:
        """See Backend."""
        return gather_blocks(pool, slots)

    def scatter_blocks(self, staging: Tensor, pool: Tensor, slots: Tensor) -> None:
        """See Backend."""
        scatter_blocks(staging, pool, slots)

    def copy_blocks(self, source: Tensor, source_slots: Tensor, pool: Tensor, slots: Tensor) -> None:
        """See Backend."""
        copy_blocks(source, source_slots, pool, slots)

    def has_checksums(self, num_bytes: int) -> bool:
        """See Backend."""
        return has_sums(num_bytes)

    def checksum_blocks(self, pool: Tensor, slots: Tensor) -> Tensor:
        """See Backend."""
        return sums_of_blocks(pool, slots)

    def post(self, lane: Lane, number: int, *tensors: Tensor) -> None:
        """See Backend."""
        post_mail(lane, number, *tensors, timed=lane.status.is_cuda)

    def take(self, lane: Lane, number: int, *tensors: Tensor, limit_s: float) -> None:
        """See Backend."""
        take_mail(lane, number, *tensors, limit_s=limit_s, timed=lane.status.is_cuda)

    def post_all(self, table: MailTable, layer: int, q: Tensor) -> None:
        """See Backend."""
        post_rows(table, layer, q, timed=q.is_cuda)

    def take_all(self, table: MailTable, layer: int, out: Tensor, lse: Tensor) -> None:
        """See Backend."""
        take_rows(table, layer, out, lse, timed=out.is_cuda)

    def _plan(self, metadata: DeviceMetadata, entries: _Entries, shape: Shape, window: int | None) -> DecodePlan | None:
        if not len(entries.decode):
            return None
        key = ("decode", shape, window)
        plan: DecodePlan | None = metadata.plans.get(key)
        if plan is None:
            longest = int(metadata.host[entries.decode, Column.NUM_KEYS].max())
            num_rows = int(metadata.host[entries.decode, Column.NUM_ROWS].sum())
            config = self._tuned.config(shape, min(longest, window or longest), num_rows)
            plan = decode_plan(metadata, entries.decode, shape, config, count_sms(metadata.slots.device), window)
            metadata.plans[key] = plan
        return plan

    def _tiles(self, metadata: DeviceMetadata, shape: Shape, rows: int) -> Tiles | None:
        """Measured ones, where there are more pairs than few."""
        if rows * (shape.heads // shape.kv_heads) <= FEW_PAIRS:
            return None
        return self._tuned.tiles(shape, int(metadata.host[:, Column.NUM_KEYS].max()), rows)


def _entries(metadata: DeviceMetadata) -> _Entries:
    found: _Entries | None = metadata.plans.get("entries")
    if found is None:
        rows = metadata.host[:, Column.NUM_ROWS]
        long = np.flatnonzero(rows > _DECODE_ROWS)
        found = metadata.plans["entries"] = _Entries(
            decode=np.flatnonzero((rows > 0) & (rows <= _DECODE_ROWS)),
            prefill=to_device(long.astype(np.int32), metadata.slots.device) if len(long) else None,
            prefill_rows=int(rows.max(initial=0)),
        )
    return found
