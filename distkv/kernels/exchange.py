"""DistAttention as calls that also send queries and receive partials, at a debtor and at a creditor.

Sockets are handed in as descriptors and stay their owners'. What travels is opaque here: how frames begin is given, and
what follows are queries and partials, each as they lie in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from distkv.kernels.attention.attention_metadata import AttentionMetadata
from distkv.kernels.attention.merge import Partial

Part = tuple[int, int]
"""A source of partials, 0 for the own ones and then one per creditor, and the first of its rows that are meant."""


class MergeRun(NamedTuple):
    """Rows [row, row + num_rows) of a microbatch are the merge of these parts, in this order."""

    row: int
    num_rows: int
    parts: tuple[Part, ...]


class FrameStatus(IntEnum):
    """What became of a frame. OTHER: what came is another one, or none; it is to be read as any frame is. SHUT: what is
    wanted may be gone. STUCK: the peer takes no answer. NO_MEMORY: for attention. As in native/exchange.cpp."""

    OK = 0
    LATE = 1
    OTHER = 2
    ENDED = 3
    FAILED = 4
    SHUT = 5
    STUCK = 6
    NO_MEMORY = 7


@dataclass(frozen=True, slots=True)
class Asked:
    """A creditor in one step. rows: of the queries, those that it is sent; partial_rows: of its partials. frames,
    expected: per layer, how the frame of its queries begins, and that of its partials. patience_s: how long it may let
    this side wait. out_dtype: float32 or bfloat16, in which the out of its partials travels."""

    fd: int
    rows: slice | Tensor
    partial_rows: int
    frames: Sequence[bytes]
    expected: Sequence[bytes]
    patience_s: float
    out_dtype: torch.dtype = torch.float32


class Answered(NamedTuple):
    """status: OK, or why there is no partial; of OTHER, `taken` was received. Times are those of a monotonic clock:
    asked from asked_s to sent_s, waited for from waits_s to answered_s. partial: float32, however it travelled."""

    status: FrameStatus
    partial: Partial
    taken: bytes
    asked_s: float
    sent_s: float
    waits_s: float
    answered_s: float


class Exchanged(NamedTuple):
    """A layer. merged: attention over all keys, float32 [N, Hq, D], valid until the next layer; None unless all
    answered. local: of own keys. attended_s, collected_s: when these and all partials were there. merged_s: the end."""

    merged: Tensor | None
    local: Partial
    answers: list[Answered]
    sent_s: float
    attended_s: float
    collected_s: float
    merged_s: float


class Exchange(Protocol):
    """One microbatch of one step."""

    def __call__(self, layer: int, q: Tensor) -> Exchanged:
        """q: [N, Hq, D]. Every socket stays open meanwhile. Raises MemoryError."""


class Gate(Protocol):
    """Says whether what a creditor serves from may be read; from any thread."""

    def shut(self) -> bool:
        """Nothing begins to be read from now on. Whether something is, right now."""


class Served(NamedTuple):
    """What served layers came to. next_layer: that the status is about. taken: all that was received of it and not
    served. times: per layer that was served since, when its queries had come and when attention was computed."""

    status: FrameStatus
    next_layer: int
    taken: bytes
    times: list[tuple[int, float, float]]


class Serving(Protocol):
    """Layers of plans that want the same rBlocks with the same rows. Their gate is open whenever they read.
    query_bytes, partial_bytes: of a layer."""

    @property
    def query_bytes(self) -> int: ...

    @property
    def partial_bytes(self) -> int: ...

    def begin(self, positions: Tensor, expected: Sequence[bytes], answers: Sequence[bytes]) -> None:
        """The layers of a plan, from the first on. positions: int64 [N]. expected, answers: per layer, how the frame
        of its queries begins, and that of its partials."""

    def run(self, fd: int, received: bytes, idle_s: float, send_s: float) -> Served:
        """Serve layers in order until the last one is, or something else is to be done. received: of the next frame,
        what the socket does not have any more. Waits idle_s at most for the next queries, and send_s for a peer that
        takes no partials."""


class ServeClock(Protocol):
    """Measures the time in which anybody is served: however many are at once, it grows no faster than the clock."""

    def begin(self) -> None:
        """Somebody is served from now on."""

    def end(self) -> None:
        """And no longer."""

    def total_s(self) -> float:
        """Until now, what is still going on included."""


class Exchanges(Protocol):
    """Makes the calls of one model over one pool."""

    def exchange(
        self, metadata: AttentionMetadata, num_rows: int, runs: Sequence[MergeRun], asked: Sequence[Asked]
    ) -> Exchange:
        """Of a microbatch of num_rows rows, each of which is in one of the runs."""

    def clock(self) -> ServeClock:
        """One that the calls of `serving` are counted by."""

    def gate(self) -> Gate:
        """One for `serving`, open."""

    def serving(
        self,
        metadata: AttentionMetadata,
        num_rows: int,
        gate: Gate,
        clock: ServeClock,
        out_dtype: torch.dtype = torch.float32,
    ) -> Serving:
        """For plans over these rBlocks; metadata: of the first of them. num_rows: of their queries. out_dtype: float32
        or bfloat16, in which the out of partials travels."""
