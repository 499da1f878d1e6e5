"""What a client reads, besides `Members`: where to go, what a request brought, how an instance is."""

from __future__ import annotations

from typing import Literal

from distkv.types import FinishReason, InstanceState, TokenLogprobs
from distkv.wire.messages.common import Count, InstanceId, Member, Message, Reason, RequestId, Seconds, Value
from distkv.wire.messages.counters import Counters


class Located(Message, frozen=True):
    """The instance that should serve the request; empty when none is ready, and `reason` says why."""

    request_id: RequestId  #: as in `Locate`
    instance_id: str = ""  #: where to submit; empty when no instance is ready
    address: str = ""  #: `tcp://host:port` of its rManager
    reason: str = ""  #: why there is none


class Rejected(Message, frozen=True):
    """What came on this connection was no message of the protocol, or none for this port."""

    reason: Reason  #: what is wrong with it, naming the path of the field
    closed: bool = True  #: whether nothing more is read from the connection


class TokenChunk(Message, frozen=True):
    """New output of a request, in order; the last chunk has a finish_reason.

    Chunks with prompt_logprobs have no tokens and come before the first that has some.
    """

    request_id: RequestId  #: the request
    token_ids: tuple[int, ...] = ()  #: new tokens since the chunk before
    #: new text; characters split over tokens and possible beginnings of stop strings are held back until they are
    #: certain
    text: str = ""
    finish_reason: FinishReason | None = None  #: `stop`, `length` or `abort` in the last chunk, None before
    prompt_tokens: Count = 0  #: tokens of the prompt
    logprobs: tuple[TokenLogprobs, ...] | None = None  #: one for each of `token_ids`, if requested
    #: those of the next tokens of the prompt, if requested; None for the very first, which nothing predicts
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    #: with the first output token: from the arrival of the request to the sending of the first Step that computed
    #: anything for it
    queue_s: Seconds | None = None
    #: with the finish_reason `stop`: the stop string, or the one of `stop_token_ids`, that ended the output; None for
    #: an end token of the model
    stop_reason: int | str | None = None


class TokenChunks(Message, frozen=True):
    """Chunks of several requests of one client, as if they came one after the other."""

    chunks: tuple[TokenChunk, ...]  #: in order, none with logprobs


class RequestEnded(Message, frozen=True):
    """A request ended without (all of) its answer; the last message about it."""

    request_id: RequestId  #: the request
    #: refused: it can never be served; failed: it was accepted or could have been, and is lost
    kind: Literal["refused", "failed"]
    reason: str  #: one sentence; empty when the two counts say it
    retryable: bool = False  #: whether another try can help
    retry_after_s: Seconds = 0.0  #: seconds until another try may be taken in, as far as can be told; 0 if it cannot
    needed_tokens: Count = 0  #: prompt + max_tokens, when they are the reason of a refusal
    #: what the instance and all peers that could lend at that moment have together; or `max_model_len`, as `reason`
    #: says
    pool_tokens: Count = 0


class SlotCounts(Value, frozen=True):
    """Slots of one pool by state; total = free + local + lent + reserved."""

    total: Count = 0  #: rBlocks in the pool
    free: Count = 0  #: in nobody's use
    local: Count = 0  #: hold, or are kept for, rBlocks of requests served here
    lent: Count = 0  #: hold verified rBlocks of debtors
    reserved: Count = 0  #: granted to debtors, not filled yet


class InstanceStatus(Value, frozen=True):
    """One instance in `distkv status --json`. Made by `of`, from what its member entry says already."""

    instance_id: InstanceId  #: its name
    role: str  #: as in `Member`
    state: str  #: as in `Member`
    pid: int  #: process of the rManager
    worker_pid: int  #: process of the engine worker
    block_tokens: Count  #: tokens per rBlock
    blocks: SlotCounts  #: its pool
    borrowed_blocks: Count  #: rBlocks granted to it by others, filled or not
    running: Count  #: requests in the batch
    waiting: Count  #: requests that wait for memory
    counters: Counters  #: see `Counters`

    @classmethod
    def of(
        cls,
        member: Member,
        *,
        state: InstanceState,
        blocks: SlotCounts | None = None,
        borrowed_blocks: int = 0,
        running: int = 0,
        waiting: int = 0,
        counters: Counters | None = None,
    ) -> InstanceStatus:
        """An instance in this state, with the numbers that are known of it."""
        return cls(
            instance_id=member.instance_id,
            role=member.role,
            state=state,
            pid=member.pid,
            worker_pid=member.worker_pid,
            block_tokens=member.block_tokens,
            blocks=blocks or SlotCounts(),
            borrowed_blocks=borrowed_blocks,
            running=running,
            waiting=waiting,
            counters=counters or Counters(),
        )


class SpanStatus(Value, frozen=True):
    """A run of a request's tokens on one instance."""

    instance_id: InstanceId  #: where their KV lies
    first_token: Count  #: position of the first of them
    num_tokens: Count  #: how many


class RequestStatus(Value, frozen=True):
    """One live request: its debtor, its tokens so far, and where their KV lies."""

    request_id: RequestId  #: its id
    instance_id: InstanceId  #: the debtor
    num_tokens: Count  #: prompt and output so far, in tokens
    spans: tuple[SpanStatus, ...]  #: where the KV lies, ascending; positions not computed yet have no span


class Status(Message, frozen=True):
    """One rManager's answer to `StatusQuery`."""

    instance: InstanceStatus  #: the instance
    #: the requests it serves, first those that hold memory, oldest first; 128 at most, `instance` counts them all
    requests: tuple[RequestStatus, ...] = ()
