"""What an rManager reads from its engine worker."""

from __future__ import annotations

from typing import Literal

import msgspec

from distkv.types import TokenLogprobs
from distkv.wire.messages.common import (
    Count,
    DataEndpoint,
    InstanceId,
    Message,
    PackedChecksums,
    Reason,
    RequestId,
    Seconds,
    SpanRef,
    Value,
)
from distkv.wire.messages.counters import Counters


class WorkerReady(Message, frozen=True):
    """Weights are loaded, the pool exists, tensor links are accepted."""

    pid: int  #: the worker's process
    compat: str  #: as in `Join`
    data: DataEndpoint  #: its tensor endpoint
    block_tokens: Count  #: tokens per rBlock
    num_slots: Count  #: rBlocks in the pool
    eos_token_ids: tuple[int, ...]  #: ids that end a text for this model
    vocab_size: Count  #: token ids must be below it
    max_positions: Count  #: positions the model was made for, rope scaling included, in tokens
    serves: str = ""  #: as in `Join`
    computes: Reason = ""  #: the device


class SeqResult(Value, frozen=True, omit_defaults=True):
    """What a step did for one sequence."""

    request_id: RequestId  #: the sequence
    attempt: Count  #: from the Step
    #: ok: the range is computed; lost: partials of some creditor were missing, nothing of the range counts; void: an
    #: earlier Step of this attempt was lost
    status: Literal["ok", "lost", "void"]
    token: int | None = None  #: the token sampled, if `sample` was set
    lost: tuple[InstanceId, ...] = ()  #: creditors whose partials were missing
    logprobs: TokenLogprobs | None = None  #: those of `token`, if `sample.logprobs` was set
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  #: those that the Step requested, in order
    complete: bool = False  #: with `token` the output is what its grammar wants, and nothing can follow
    #: why the request cannot go on: its grammar leaves no token or costs too much to follow, which begins with the
    #: field, or the model gave no numbers; `token` is void
    problem: Reason = ""
    is_fault: bool = False  #: whether `problem` is the model's, and not the request's
    may_come_again: bool = False  #: whether `problem` is of other requests, so that this one may be tried again


class StepResult(Message, frozen=True):
    """Answer to `Step`, in the order of the Steps."""

    step_id: Count  #: as in `Step`
    results: tuple[SeqResult, ...]  #: one per sequence, in the order of the Step
    compute_s: Seconds = 0.0  #: seconds from the start to the end of the Step in the worker
    counters: Counters = msgspec.field(default_factory=Counters)  #: what the worker counted so far


class Compiled(Message, frozen=True):
    """Answer to `Compile`: Steps can name the grammar, or `problem` says why not."""

    grammar_id: Count  #: as in `Compile`
    problem: Reason = ""  #: why there is no such grammar; empty if there is one


class Checksummed(Message, frozen=True):
    """Checksums of the slots of `Checksum`, in order."""

    checksum_id: Count  #: as in `Checksum`
    checksums: PackedChecksums  #: of the slots, in order


class Pulled(Message, frozen=True):
    """A pull ended; with `problem` set none of its blocks may be used."""

    pull_id: Count  #: as in `Pull`
    problem: Reason = ""  #: why none of the rBlocks may be used; empty if all are verified


class Linked(Message, frozen=True):
    """An attempt to link to a peer ended: Steps can send queries there, or `problem` says why not."""

    instance_id: InstanceId  #: as in `Link`
    incarnation: int  #: as in `Link`
    problem: Reason = ""  #: why there is no link; empty if there is one


class Revoked(Message, frozen=True):
    """Nobody reads or fills the span, or these positions of it, any more: their slots may be used again."""

    span: SpanRef  #: as in `Revoke`
    positions: tuple[Count, ...] = ()  #: as in `Revoke`


class WorkerStats(Message, frozen=True):
    """Answer to `StatsQuery`: what the worker counted."""

    query_id: Count  #: as in `StatsQuery`
    counters: Counters  #: what the worker counted so far


class WorkerFailed(Message, frozen=True):
    """The worker cannot go on and is about to exit; the instance ends with it."""

    reason: Reason  #: one sentence
