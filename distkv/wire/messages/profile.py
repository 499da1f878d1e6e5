"""What an instance's hardware does with its model, measured by `distkv profile` (001 §5.3).

An instance reads it from a file and sends it with `Join`; `control/performance` predicts by it. Curves are tables of
(size, seconds) between which the seconds grow linearly.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from distkv.wire.messages.common import Compat, Count, Seconds, Value

MOST_POINTS = 64
LinkKind = Literal["host", "network"]
"""What lies between two instances: one host, whose processes can map each other's memory, or a network."""

Positive = Annotated[int, Meta(ge=1, le=10**12)]
Rate = Annotated[float, Meta(ge=1e-9, le=1e18)]
Times = Annotated[float, Meta(ge=1, le=1e6)]
Text = Annotated[str, Meta(max_length=256)]


class Point(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One measured point of a curve."""

    size: Positive  #: tokens, rows or sequences; the curve says which
    seconds: Seconds  #: for them


Curve = Annotated[tuple[Point, ...], Meta(min_length=1, max_length=MOST_POINTS)]


class LinkProfile(Value, frozen=True):
    """What a link to a peer does."""

    round_trip_s: Seconds  #: queries of one row out and its partial back, without any attention
    bytes_per_s: Rate  #: of queries and partials, both ways together
    read_bytes_per_s: Rate  #: of rBlocks that are read, checked and stored
    #: the same as `round_trip_s` while the peer computes steps of its own; 0 is as without
    busy_round_trip_s: Seconds = 0.0


class Profile(Value, frozen=True):
    """What one instance's hardware does with its model. Seconds are of all layers, bytes of one.

    Raises ValueError for a curve that is not in order, or falls. Steps may: products with one or two rows can take
    longer than with four.
    """

    model: Text  #: name of the checkpoint
    device: Text  #: what computed
    layers: Positive  #: of the model
    block_tokens: Positive  #: tokens per rBlock
    query_bytes: Positive  #: of one row of queries
    partial_bytes: Positive  #: of one row of partials
    kv_bytes: Positive  #: of the keys and values of one token
    step: Curve  #: sequences → seconds of a decode step without its attention, all keys local: W(β)/f(β)
    attention: Curve  #: context tokens of all sequences of a decode step → seconds of its attention: ΣS/g(S)
    prefill: Curve  #: tokens of a prefill chunk → seconds of it without attention
    prefill_attention: Curve  #: tokens of a prefill chunk → seconds of its attention for each key
    serving: Curve  #: tokens → seconds of a creditor's attention over them for a debtor's decode step
    serving_prefill: Curve  #: tokens of a debtor's prefill chunk → seconds of a creditor's attention for each key
    links: Annotated[
        dict[LinkKind, LinkProfile], Meta(min_length=1, max_length=2)
    ]  #: by what lies between debtor and creditor
    #: as `step`, of one that sends queries to creditors, without waiting for them; empty is as `step`
    remote_step: Annotated[tuple[Point, ...], Meta(max_length=MOST_POINTS)] = ()
    #: as `prefill`, of one that sends queries to creditors, without waiting for them; empty is as `prefill`
    remote_prefill: Annotated[tuple[Point, ...], Meta(max_length=MOST_POINTS)] = ()
    serving_busy_times: Times = 1.0  #: how many times as long serving takes while the creditor computes its own steps
    #: how many times as long the worker computes a step of one sequence while another instance of the host computes
    #: such steps too; others less, the more they do with the weights that they read
    crowded_times: Times = 1.0
    #: how much longer it is then, besides, from one step to the next: whatever its host decides meanwhile is in its way
    crowded_step_s: Seconds = 0.0
    #: by how much of its serving time a creditor's own steps take longer; 0 where cores are left over
    serving_share: Annotated[float, Meta(ge=0, le=16)] = 1.0
    #: by how much a creditor's own steps take longer for each step of a debtor, besides that
    serving_step_s: Seconds = 0.0
    serves: Compat = ""  #: what it was measured of, as in `Join`; empty if that is not known
    kernels: Text = ""  #: backend that computed
    threads: Count = 0  #: of the CPU; 0 if that is not known
    versions: Annotated[dict[Text, Text], Meta(max_length=16)] = msgspec.field(default_factory=dict)  #: of programs
    date: Text = ""  #: when it was measured
    within: Annotated[float, Meta(ge=0, le=1)] | None = None  #: share of its predictions within 10 % of what came

    def __post_init__(self) -> None:
        for name in CURVES:
            points: tuple[Point, ...] = getattr(self, name)
            for before, after in pairwise(points):
                if after.size <= before.size:
                    raise ValueError(f"the sizes of {name} do not ascend: {before.size}, {after.size}")
                if after.seconds < before.seconds and name not in STEPS:
                    raise ValueError(f"{name} falls from {before.seconds:g} to {after.seconds:g} s at {after.size}")
            if points and not points[-1].seconds:
                raise ValueError(f"{name} is 0 everywhere")
            if name in STEPS and (instant := next((one for one in points if not one.seconds), None)):
                raise ValueError(f"{name} takes no time for {instant.size}")

    @property
    def can_crowd(self) -> bool:
        """Whether own steps take longer while another instance of the host computes."""
        return (self.crowded_times, self.crowded_step_s) != (1.0, 0.0)

    def differences(self, serves: str) -> str:
        """What was measured that `serves`, as in `Join`, does not say, as far as times depend on it; empty if none, or
        if that is not known."""
        here, measured = _facts(serves), _facts(self.serves)
        return ", ".join(
            f"{name} {measured[name]} (not {here[name]})"
            for name in _COUNTING
            if name in here and name in measured and here[name] != measured[name]
        )


_COUNTING = ("model", "dtype", "KV dtype")


def _facts(serves: str) -> dict[str, str]:
    """Name -> value."""
    return {name: value for name, _, value in (fact.rpartition(" ") for fact in serves.split(", "))}


CURVES = (
    "step",
    "attention",
    "prefill",
    "prefill_attention",
    "serving",
    "serving_prefill",
    "remote_step",
    "remote_prefill",
)
"""The fields that are curves."""
STEPS = ("step", "remote_step")
"""Those of them that are whole steps: each takes some time."""
