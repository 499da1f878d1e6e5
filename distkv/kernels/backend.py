"""What computes DistAttention's maths on a device: every backend has this signature, and the same tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from distkv.kernels.block_table import BlockTable
from distkv.kernels.fused_qkv import FusedQkv
from distkv.kernels.layout import LayerKv
from distkv.kernels.merge import Partial


@dataclass(frozen=True)
class AttentionMetadata:
    """What a call of attention over a batch needs besides queries and keys; the same for all layers of a step.

    rows[i]: the range of query rows that attend to the keys of block_tables[i]. A row may be in several ranges, or in
    none. positions: int64 [N], of every query row. prepared: what a backend derives from this, by the backend's name,
    once for all layers.
    """

    rows: tuple[range, ...]
    block_tables: tuple[BlockTable, ...]
    positions: Tensor
    prepared: dict[str, Any] = field(default_factory=dict)


class Backend(Protocol):
    """Micro-attention and ScaleReduce over pools in `layout`. Safe to call from several threads."""

    name: str
    layout: type[LayerKv]

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
        """Attention of queries over the keys of the block tables, as partials (000 §4.2); see `reference`.

        q: [N, Hq, D], float32, bfloat16 or float16. window, alibi: see `reference`; alibi is float32.
        serving: for a peer, which goes before the own step.

        Returns float32 (out [R, Hq, D], lse [R, Hq]), range by range of `metadata.rows`, R rows in all.
        """

    def merge(self, partials: Sequence[Partial]) -> Partial:
        """See `merge.merge`; float32."""

    def store(self, qkv: FusedQkv, kv: LayerKv, slots: Tensor, offsets: Tensor) -> Tensor:
        """Norm and rotate queries and keys, and store keys and values; returns the queries, [N, Hq, D].

        slots, offsets: int64 [N], the block of each token and its place in it.
        """
