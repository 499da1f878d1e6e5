"""What a client reads, besides `Members`: where to go, what a request brought, how an instance is."""

from __future__ import annotations

from typing import Literal

from distkv.types import FinishReason, TokenLogprobs
from distkv.wire.messages.common import Count, InstanceId, Message, RequestId, Seconds, Value


class Located(Message, frozen=True):
    """The instance that should serve the request; empty when none is ready, and `reason` says why."""

    request_id: RequestId
    instance_id: str = ""
    address: str = ""
    reason: str = ""


class Rejected(Message, frozen=True):
    """What came on this connection was no message of the protocol; nothing more is read from it."""

    reason: str


class TokenChunk(Message, frozen=True):
    """New output of a request, in order; the last chunk has a finish_reason.

    logprobs: one for each of token_ids, if asked for. prompt_logprobs: for the next tokens of the prompt, if asked for;
    they come before the first output, and the prompt's first token has none. queue_s: with the first output token, the
    seconds between arrival and the first step of the request.
    """

    request_id: RequestId
    token_ids: tuple[int, ...] = ()
    text: str = ""
    finish_reason: FinishReason | None = None
    prompt_tokens: Count = 0
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    queue_s: Seconds | None = None


class RequestEnded(Message, frozen=True):
    """A request ended without (all of) its answer.

    refused: it can never be served; `needed_tokens` and `pool_tokens` say why (both 0: `reason` alone does).
    failed: it was lost; `retryable` says whether another try can help.
    """

    request_id: RequestId
    kind: Literal["refused", "failed"]
    reason: str
    retryable: bool = False
    needed_tokens: Count = 0
    pool_tokens: Count = 0


class BlockCounts(Value, frozen=True):
    """Slots of one pool by state; total = free + local + lent + reserved."""

    total: Count = 0
    free: Count = 0
    local: Count = 0
    lent: Count = 0
    reserved: Count = 0


class Counters(Value, frozen=True):
    """Since the instance started.

    attend_queries: queries (token × layer) this instance attended for peers. query_bytes: queries sent to creditors and
    partials received. kv_bytes: KV bytes pulled into this pool. recomputed_tokens: tokens whose KV was computed again.
    attend_wait_s: time that steps stood still for creditors' partials. plan_s: time the rManager took to decide.
    steps: that the worker ran. model_s: time that they spent in the model, from embedding to logits; on GPUs, where
    only the end can be seen, to sampled tokens.
    """

    attend_queries: Count = 0
    query_bytes: Count = 0
    kv_bytes: Count = 0
    recomputed_tokens: Count = 0
    preemptions: Count = 0
    moved_blocks: Count = 0
    refusals: Count = 0
    lease_expiries: Count = 0
    checksum_refusals: Count = 0
    malformed_messages: Count = 0
    prompt_tokens: Count = 0
    generation_tokens: Count = 0
    attend_wait_s: Seconds = 0.0
    plan_s: Seconds = 0.0
    steps: Count = 0
    model_s: Seconds = 0.0


class InstanceStatus(Value, frozen=True):
    """One instance in `distkv status --json`."""

    instance_id: InstanceId
    role: str
    state: str
    pid: int
    worker_pid: int
    block_tokens: Count
    blocks: BlockCounts
    borrowed_blocks: Count
    running: Count
    waiting: Count
    counters: Counters


class SpanStatus(Value, frozen=True):
    """`num_tokens` tokens of a request from `first_token` on lie on an instance."""

    instance_id: InstanceId
    first_token: Count
    num_tokens: Count


class RequestStatus(Value, frozen=True):
    """One live request: its debtor, its tokens so far, and where their KV lies."""

    request_id: RequestId
    instance_id: InstanceId
    num_tokens: Count
    spans: tuple[SpanStatus, ...]


class Status(Message, frozen=True):
    """One rManager's answer to `StatusQuery`."""

    instance: InstanceStatus
    requests: tuple[RequestStatus, ...] = ()
