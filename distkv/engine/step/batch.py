"""What a step computes with: the planned sequences, and the tensors of a microbatch of them."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from torch import Tensor

from distkv.engine.attention.creditor_link import CreditorLink
from distkv.engine.attention.fetch.keys import FetchedKeys
from distkv.engine.attention.layer_times import LayerTimes
from distkv.engine.attention.merging import MergePlan
from distkv.kernels import AttentionMetadata, BlockTable
from distkv.kernels.exchange import Exchange
from distkv.wire.messages.to_worker import RemoteSpan, SeqStep

_MUCH = 16
"""Chunks' attention over keys takes most of the time when they have so many times the pairs that decodes have."""


@dataclass(slots=True)
class PlannedSeq:
    """A sequence of a step, or the part of it in one microbatch, and all its token ids.

    lost: creditors that failed it, in any microbatch; once there is one, nothing of the sequence counts. source: among
    the tokens that the step before samples at this moment, the one that the last of `tokens` stands for, if it does.
    """

    step: SeqStep
    tokens: array[int]
    lost: set[str] = field(default_factory=set)
    source: int | None = None


@dataclass(slots=True)
class BatchSeq:
    """One sequence of a microbatch.

    rows: its rows. local: its own keys at positions < end. spans: the borrowed ones that its queries can see,
    ascending. remote: the (plan, entry) that the partial over each of them comes from. local_place: how many of them
    precede the local part in span order. lost: see PlannedSeq.
    """

    step: SeqStep
    tokens: array[int]
    lost: set[str]
    local: BlockTable
    spans: list[RemoteSpan]
    local_place: int
    rows: slice = field(default_factory=lambda: slice(0, 0))
    remote: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Batch:
    """A microbatch, ready to be computed. Tensors are on the device.

    tokens, positions: int64 [N]. slots, offsets: int64 [N], where the K and V of each row are stored. wanted: int64
    [M], rows whose last hidden states are wanted: one for each sequence that wants a token, in order, then all that
    predict prompt tokens whose logprobs are wanted. metadata: which rows read which local blocks. seqs: those that have
    rows: who lost a creditor before has none. links: to the creditors of their spans that are asked. fetched: the keys
    at creditors that are read here. merge_plan: of their partials, those of the links first. waited_s: how long its
    layers stood still for partials and for keys. attend_s: how long they attended to own keys. times: of its layers, if
    anybody wants them. exchange: computes a layer in one call, as long as nothing fails.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    offsets: Tensor
    wanted: Tensor
    metadata: AttentionMetadata
    seqs: list[BatchSeq]
    links: list[CreditorLink]
    merge_plan: MergePlan
    fetched: list[FetchedKeys] = field(default_factory=list)
    waited_s: float = 0.0
    attend_s: float = 0.0
    times: list[LayerTimes] | None = None
    exchange: Exchange | None = None

    @property
    def local_pairs(self) -> float:
        """Pairs of a row and an own rBlock that it sees, of chunks; 0 if decodes are much of the batch."""
        chunks = [seq for seq in self.seqs if len(seq.tokens) > 1]
        decoded = sum(len(seq.local) for seq in self.seqs if len(seq.tokens) == 1)
        pairs = sum(len(seq.tokens) * (len(seq.local) - len(seq.tokens) / seq.local.block_tokens / 2) for seq in chunks)
        return pairs if pairs > _MUCH * decoded else 0.0
