"""What a call of attention over a batch needs besides queries and keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from distkv.kernels.attention.block_table import BlockTable


@dataclass(frozen=True)
class AttentionMetadata:
    """Which query rows attend over which block tables; the same for all layers of a step.

    rows[i]: the range of query rows that attend to the keys of block_tables[i]. A row may be in several ranges, or in
    none. positions: int64 [N], of every query row. host_positions: the same on the host, where somebody knows them.
    prepared: what a backend derives from this, by the backend's name, once for all layers.
    """

    rows: tuple[range, ...]
    block_tables: tuple[BlockTable, ...]
    positions: Tensor
    host_positions: Tensor | None = None
    prepared: dict[str, Any] = field(default_factory=dict)
