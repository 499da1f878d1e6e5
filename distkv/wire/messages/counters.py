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
    serve_s: Annotated[Seconds, _counter("time in which peers' attention was computed, by however many at once")] = 0.0
    step_serve_s: Annotated[Seconds, _counter("of that time, what fell into own steps and made them longer")] = 0.0
    query_bytes: Annotated[
        Count,
        _counter(
            "bytes of plans and queries sent to creditors and of partials received, without frame headers",
            in_status=True,
        ),
    ] = 0
    kv_bytes: Annotated[Count, _counter("KV bytes pulled into this pool", in_status=True)] = 0
    fetched_blocks: Annotated[
        Count, _counter("rBlocks at creditors that prefill chunks read here in place of shipping their queries")
    ] = 0
    fetched_bytes: Annotated[Count, _counter("KV bytes of these that were read")] = 0
    recomputed_tokens: Annotated[
        Count,
        _counter("tokens whose KV was computed again after a loss or a preemption", in_status=True),
    ] = 0
    preemptions: Annotated[
        Count, _counter("requests stopped for lack of memory, to start over", metric="num_preemptions")
    ] = 0
    redispatched: Annotated[
        Count, _counter("requests that waited for memory and were sent to an instance that had it")
    ] = 0
    moved_blocks: Annotated[Count, _counter("rBlocks that left for a creditor")] = 0
    recalled_blocks: Annotated[Count, _counter("rBlocks that came home from a creditor")] = 0
    borrows: Annotated[Count, _counter("times a request began or went on with memory that was borrowed for it")] = 0
    avoidable_borrows: Annotated[Count, _counter("of these, those of requests that this instance could hold")] = 0
    refusals: Annotated[Count, _counter("times a creditor refused this instance")] = 0
    lease_expiries: Annotated[Count, _counter("leases that ran out, given and taken")] = 0
    reclaimed_blocks: Annotated[Count, _counter("rBlocks that were lent and demanded back for an own request")] = 0
    planned_moves: Annotated[Count, _counter("moves that a gManager planned and that this instance began")] = 0
    planned_blocks: Annotated[Count, _counter("rBlocks that these were about, homeward ones included")] = 0
    infeasible_moves: Annotated[
        Count, _counter("moves that a gManager planned and that were stale or could not be carried out")
    ] = 0
    dgfm_runs: Annotated[Count, _counter("runs of DGFM in which this instance was to bring rBlocks home")] = 0
    swapped_blocks: Annotated[Count, _counter("rBlocks that came home by DGFM")] = 0
    checksum_refusals: Annotated[Count, _counter("rBlocks whose checksum did not match")] = 0
    malformed_messages: Annotated[Count, _counter("messages and tensor links refused for what they held")] = 0
    prompt_tokens: Annotated[Count, _counter("prompt tokens of accepted requests", metric="instance_prompt_tokens")] = 0
    generation_tokens: Annotated[Count, _counter("tokens generated", metric="instance_generation_tokens")] = 0
    attended_tokens: Annotated[
        Count, _counter("keys that queries of steps attended to, wherever they lay: query rows × tokens before them")
    ] = 0
    remote_attended_tokens: Annotated[Count, _counter("those of them that lay at creditors")] = 0
    attend_wait_s: Annotated[
        Seconds, _counter("time that steps waited for creditors' partials, or for keys of theirs")
    ] = 0.0
    plan_s: Annotated[Seconds, _counter("time the rManager took to decide")] = 0.0
    steps: Annotated[Count, _counter("steps that the worker ran")] = 0
    remote_steps: Annotated[Count, _counter("steps that attended to keys at creditors")] = 0
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
