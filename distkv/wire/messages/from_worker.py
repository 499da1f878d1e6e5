"""What an rManager reads from its engine worker."""

from __future__ import annotations

from typing import Literal

from distkv.types import TokenLogprobs
from distkv.wire.messages.common import Count, DataEndpoint, InstanceId, Message, RequestId, Seconds, SpanRef, Value


class WorkerReady(Message, frozen=True):
    """Weights are loaded, the pool exists, tensor links are accepted.

    compat: hash of model, dtype, block layout and protocol. block_tokens, num_slots: the pool's shape.
    eos_token_ids: ids that end a text for this model. vocab_size: ids must be below it.
    max_positions: positions the model was made for.
    """

    pid: int
    compat: str
    data: DataEndpoint
    block_tokens: Count
    num_slots: Count
    eos_token_ids: tuple[int, ...]
    vocab_size: Count
    max_positions: Count


class SeqResult(Value, frozen=True, omit_defaults=True):
    """What a step did for one sequence.

    ok: its range is computed, `token` is the sample if one was wanted. lost: partials of `lost` creditors were missing;
    nothing of the range counts. void: an earlier step of the same attempt was lost. logprobs: of `token`, if asked for.
    prompt_logprobs: those the step asked for, in order.
    """

    request_id: RequestId
    attempt: Count
    status: Literal["ok", "lost", "void"]
    token: int | None = None
    lost: tuple[InstanceId, ...] = ()
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


class WorkerCounters(Value, frozen=True):
    """Since the worker started; see Counters."""

    attend_queries: Count = 0
    query_bytes: Count = 0
    kv_bytes: Count = 0
    checksum_refusals: Count = 0
    malformed_frames: Count = 0
    attend_wait_s: Seconds = 0.0
    steps: Count = 0
    model_s: Seconds = 0.0


class StepResult(Message, frozen=True):
    """Step `step_id` is done. compute_s: time from its start to its end in the worker."""

    step_id: Count
    results: tuple[SeqResult, ...]
    compute_s: Seconds = 0.0
    counters: WorkerCounters = WorkerCounters()


class Checksummed(Message, frozen=True):
    """Checksums of the slots of `Checksum`, in order."""

    checksum_id: Count
    checksums: tuple[int, ...]


class Pulled(Message, frozen=True):
    """A pull ended; with `problem` set none of its blocks may be used."""

    pull_id: Count
    problem: str = ""


class Revoked(Message, frozen=True):
    """Nobody reads or fills the span any more: its slots may be used again."""

    span: SpanRef


class WorkerStats(Message, frozen=True):
    """Answer to `StatsQuery`."""

    query_id: Count
    counters: WorkerCounters


class WorkerFailed(Message, frozen=True):
    """The worker cannot go on and is about to exit; the instance ends with it."""

    reason: str
