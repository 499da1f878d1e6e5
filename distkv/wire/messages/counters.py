"""What an instance counts: every counter is declared here, and nowhere else.

A part that counts has a `Counters` of its own and adds to the fields it knows; what an instance shows is the `total` of
its parts, those of the worker included. `/metrics` and `distkv status` are made from the declaration.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta, inspect

from distkv.wire.messages.common import Count, Seconds


def _counter(text: str, *, metric: str = "", in_status: bool = False) -> Meta:
    return Meta(description=text, extra={"metric": metric, "in_status": in_status})


class Counters(msgspec.Struct, gc=False):
    """Counts since the instance started. Unlike messages it can change: its owner counts in it.

    A field says what it counts, how its metric is called where that is another name (vLLM's, or one that tells it from
    the gateway's own), and whether `distkv status --json` has it.
    """

    attend_queries: Annotated[Count, _counter("queries (token × layer) attended for peers", in_status=True)] = 0
    query_bytes: Annotated[
        Count,
        _counter(
            "bytes of plans and queries sent to creditors and of partials received, without frame headers",
            in_status=True,
        ),
    ] = 0
    kv_bytes: Annotated[Count, _counter("KV bytes pulled into this pool", in_status=True)] = 0
    recomputed_tokens: Annotated[
        Count,
        _counter("tokens whose KV was computed again after a loss or a preemption", in_status=True),
    ] = 0
    preemptions: Annotated[
        Count, _counter("requests stopped for lack of memory, to start over", metric="num_preemptions")
    ] = 0
    moved_blocks: Annotated[Count, _counter("rBlocks that left for a creditor")] = 0
    refusals: Annotated[Count, _counter("times a creditor refused this instance")] = 0
    lease_expiries: Annotated[Count, _counter("leases that ran out, given and taken")] = 0
    reclaimed_blocks: Annotated[Count, _counter("rBlocks that were lent and demanded back for an own request")] = 0
    checksum_refusals: Annotated[Count, _counter("rBlocks whose checksum did not match")] = 0
    malformed_messages: Annotated[Count, _counter("messages and tensor links refused for what they held")] = 0
    prompt_tokens: Annotated[Count, _counter("prompt tokens of accepted requests", metric="instance_prompt_tokens")] = 0
    generation_tokens: Annotated[Count, _counter("tokens generated", metric="instance_generation_tokens")] = 0
    attend_wait_s: Annotated[Seconds, _counter("time that steps waited for creditors' partials")] = 0.0
    plan_s: Annotated[Seconds, _counter("time the rManager took to decide")] = 0.0
    steps: Annotated[Count, _counter("steps that the worker ran")] = 0
    model_s: Annotated[
        Seconds,
        _counter(
            "time that steps spent in the model, from embedding to logits; on GPUs, where only the end can be seen, "
            "to sampled tokens"
        ),
    ] = 0.0
    mask_s: Annotated[
        Seconds,
        _counter("time of making masks of the tokens that structured outputs can have, mostly beside the model"),
    ] = 0.0


class Counter(NamedTuple):
    """A field of Counters as its readers see it. metric: its name on /metrics, between `distkv:` and `_total`."""

    name: str
    metric: str
    text: str
    in_status: bool


def _declared() -> Iterator[Counter]:
    info = inspect.type_info(Counters)
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
        kind = field.type
        assert isinstance(kind, inspect.Metadata) and kind.extra and kind.extra_json_schema
        metric = kind.extra["metric"] or re.sub("_s$", "_seconds", field.name)
        yield Counter(field.name, metric, kind.extra_json_schema["description"], kind.extra["in_status"])


COUNTERS = tuple(_declared())


def total(*parts: Counters) -> Counters:
    """The sum of what several parts counted, field by field: a new object."""
    return Counters(*map(sum, zip(*map(msgspec.structs.astuple, parts), strict=True)))
