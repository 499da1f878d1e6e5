"""Attention of decode rows over tensors that stay where they are, so that a captured graph of it serves every step."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from distkv.kernels.attention.layout import LayerKv
from distkv.kernels.attention.merge import Partial


@dataclass(frozen=True)
class StaticInputs:
    """What a StaticDecode reads and writes, for N rows, one of a sequence each. Between two steps only their numbers
    change.

    tables: int32, flat: block tables of sequences whose blocks follow each other, each at a place of its own.
    max_blocks: of one. positions: int64 [N], of the rows. attended: [N, Hq, D] in the model's dtype, what the
    o-projection takes. windows: of all layers. merged_elsewhere: whether the results go into `StaticDecode.partials`,
    for a merge with those over other keys, and not into `attended`.
    """

    tables: Tensor
    max_blocks: int
    positions: Tensor
    attended: Tensor
    windows: Collection[int | None]
    merged_elsewhere: bool = False


class StaticDecode(Protocol):
    """Attention of up to N decode rows. What it launches depends on N alone.

    partials: float32 out [N, Hq, D] and lse [N, Hq], the results where they are merged elsewhere. Rows that were not
    planned get nothing: what `attended` or these held of them stays.
    """

    partials: Partial

    def plan(self, places: NDArray[np.int64], first_positions: NDArray[np.int64], keys: NDArray[np.int64]) -> None:
        """Divide the keys of rows 0 to len(places) - 1, from the next `attend` in this stream on.

        places: where the table of each begins in `tables`. first_positions: of the first key of its first block. keys:
        how many it may see, until it is planned again.
        """

    def attend(self, q: Tensor, kv: LayerKv, scale: float, window: int | None) -> None:
        """Attention of q [N, Hq, D] to the keys of its table at positions up to its own, into `attended` or
        `partials`."""
