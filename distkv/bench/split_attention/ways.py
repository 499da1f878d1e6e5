"""What the three ways to attend have in common."""

from __future__ import annotations

from typing import Final, Literal, Protocol

import torch
from torch import Tensor

from distkv.wire.messages.data import OutDtype

Name = Literal["DistAttention", "tensor parallelism", "RingAttention"]
Link = Literal["host", "shaped"]
DIST: Final = "DistAttention"
HEADS: Final = "tensor parallelism"
RING: Final = "RingAttention"
WAYS: tuple[Name, ...] = (DIST, HEADS, RING)
HOST: Final = "host"
SHAPED: Final = "shaped"
OUT_DTYPES: dict[Link, OutDtype] = {HOST: "float32", SHAPED: "bfloat16"}
"""In which outputs travel, as DistAttention's partials do."""


class Way(Protocol):
    """One process's part of one way over one link.

    outputs: of the last step, [layers, rows that this process has, heads, dim]. sent_bytes: of queries, outputs, keys
    and values that travelled by this process's doing in the last step, without headers.
    """

    sent_bytes: int

    @property
    def outputs(self) -> Tensor: ...

    def step(self, layers: int) -> float:
        """Attend in so many of the layers, one after another; returns seconds. The other processes do the same."""


def empty_outputs(layers: int, rows: int, heads: int, dim: int) -> Tensor:
    """NaN, so that what was not written is not taken for a result."""
    return torch.full((layers, rows, heads, dim), torch.nan)
