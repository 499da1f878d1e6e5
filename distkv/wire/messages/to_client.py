"""What a client reads, besides `Members`: where to go, what a request brought, how an instance is."""

from __future__ import annotations

from typing import Literal

from distkv.types import FinishReason, InstanceState, TokenLogprobs
from distkv.wire.messages.common import (
    Count,
    InstanceId,
    Member,
    Message,
    Reason,
    RequestId,
    Seconds,
    Share,
    Value,
    Word,
)
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
    needed_tokens: Count = 0  #: prompt + max_tokens, when they are the reason
    #: what the instance and all peers that could lend at that moment have together; or `max_model_len`, as `reason`
    #: says
    pool_tokens: Count = 0
    #: the instance that the request should be sent to instead, where it need not wait, only of one that `can_move`; or
    #: this one, which has not heard of its client for a while: the request is sent again if it had no output
    go_to: str = ""
    is_draining: bool = False  #: the instance takes no requests any more, whatever the member list says yet


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
    state: str  #: as in `Member`
    pid: int  #: process of the rManager
    worker_pid: int  #: process of the engine worker
    block_tokens: Count  #: tokens per rBlock
    blocks: SlotCounts  #: its pool
    borrowed_blocks: Count  #: rBlocks granted to it by others, filled or not
    running: Count  #: requests in the batch
    waiting: Count  #: requests that wait for memory
    counters: Counters  #: see `Counters`
    serve_fraction: Share = 0.0  #: of the time of its own steps of late, what serving its debtors took
    computes: Reason = ""  #: its device; empty until its worker is ready

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
        serve_fraction: float = 0.0,
        computes: str = "",
    ) -> InstanceStatus:
        """An instance in this state, with the numbers that are known of it."""
        return cls(
            instance_id=member.instance_id,
            state=state,
            pid=member.pid,
            worker_pid=member.worker_pid,
            block_tokens=member.block_tokens,
            blocks=blocks or SlotCounts(),
            borrowed_blocks=borrowed_blocks,
            running=running,
            waiting=waiting,
            counters=counters or Counters(),
            serve_fraction=serve_fraction,
            computes=computes,
        )

    @property
    def answers(self) -> bool:
        """Whether the instance does: of others this is what was known last."""
        return self.state not in ("unreachable", "dead", "left")


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


class HistoryEntry(Value, frozen=True):
    """Something that happened to the memory of a request."""

    #: waits: others lent less than it lacks; begins: it has a place for all its tokens; borrowed, left, came_home: of
    #: rBlocks; reclaimed: its creditor wants them back; lost, preempted: they are computed again; not_moved: a creditor
    #: could not take them; planned: a gManager wants them moved; dropped: that was not done; ended. A reader takes
    #: others as they are
    happened: Word
    ago_s: Seconds  #: how long ago, the last time
    instance_id: str = ""  #: the peer that had to do with it; empty if none had
    why: Reason = ""  #: why, in words; of `borrowed`, what for: `place`, `relieve`, `reclaim` or `planned`
    num_blocks: Count = 0  #: how many rBlocks, all times together; of `begins` and `reclaimed`, the last time
    times: Count = 1  #: how often, with nothing else in between


class DebtStatus(Value, frozen=True):
    """What lies at one creditor of a request."""

    instance_id: InstanceId  #: the creditor
    num_blocks: Count  #: rBlocks that lie there
    coming_blocks: Count = 0  #: rBlocks that are to go there, or are on their way
    spare_blocks: Count = 0  #: positions kept for rBlocks that it is expected to grow by


class Explained(Message, frozen=True):
    """Where the rBlocks of one request lie, and how that came about: an rManager's answer to `ExplainQuery`."""

    query: RequestId  #: what was requested
    instance_id: InstanceId  #: the instance that answers
    #: the request: the one that was named, or the first that was made of it, such as a choice of an HTTP request; empty
    #: if none is known
    request_id: str = ""
    others: tuple[RequestId, ...] = ()  #: more that were made of it; 15 at most
    #: `running`, `acquiring` (memory is being borrowed for it), `waiting`, `ended`, or `unknown`
    state: Word = "unknown"
    came_ago_s: Seconds = 0.0  #: since it was accepted
    prompt_tokens: Count = 0  #: of its prompt
    num_tokens: Count = 0  #: prompt and output so far; 0 if it has ended
    max_tokens: Count = 0  #: most output
    block_tokens: Count = 0  #: tokens per rBlock
    local_blocks: Count = 0  #: slots that it has at the instance
    debts: tuple[DebtStatus, ...] = ()  #: what it has borrowed; 64 creditors at most, those with most first
    lacks_blocks: Count = 0  #: rBlocks that it needs before it can begin or go on
    growth_blocks: Count = 0  #: rBlocks that it is expected to need besides
    room_blocks: Count = 0  #: rBlocks that are free for it at the instance
    full_batch: Count = 0  #: sequences of a step, where it waits because there are no more; else 0
    num_creditors: Count = 0  #: peers that may be asked for memory now
    num_before: Count = 0  #: requests that wait as it does and came before it
    retry_in_s: Seconds = 0.0  #: when it tries again, if nothing happens before
    history: tuple[HistoryEntry, ...] = ()  #: what happened to it, oldest first; the newest 32 entries
    left_out: Count = 0  #: how many entries before these are forgotten
    #: more than 0: nothing was looked at, for too many such queries came; seconds until one is answered again
    retry_after_s: Seconds = 0.0


class Dispatched(Message, frozen=True):
    """Where a gManager sent a request, and by what it knew then: its answer to `ExplainQuery`."""

    query: RequestId  #: what was requested
    #: the request that was dispatched under this name, or the newest that was made of it; empty if none is remembered
    request_id: str = ""
    instance_id: str = ""  #: where it was sent; empty if that is not remembered
    ago_s: Seconds = 0.0  #: how long ago
    num_tokens: Count = 0  #: what it was estimated to need, prompt and most output; 0 is unknown
    num_ready: Count = 0  #: instances that were ready
    load: Count = 0  #: requests that the chosen one had
    waiting: Count = 0  #: of those, how many waited
    free_tokens: Count = 0  #: tokens that it had room for
    excluded: Count = 0  #: instances that were left out, because they had failed the request or were just lost
    serving_id: str = ""  #: the instance that reports rBlocks of the request as its own now; empty if none does
    #: more than 0: nothing was looked at, for too many such queries came; seconds until one is answered again
    retry_after_s: Seconds = 0.0


class DebtEdge(Value, frozen=True, array_like=True):
    """One edge of the debt graph (000, Fig. 5)."""

    debtor_id: InstanceId  #: who has borrowed
    creditor_id: InstanceId  #: from whom
    num_blocks: Count  #: how many rBlocks


class PlanStatus(Value, frozen=True):
    """A move that a gManager planned (001 §6.2), and what came of it."""

    request_id: RequestId  #: whose rBlocks
    debtor_id: InstanceId  #: the instance that serves it
    destination: InstanceId  #: where they are to go; the debtor itself, if home
    num_blocks: Count  #: how many
    ago_s: Seconds  #: how long ago it was planned
    predicted_tokens_per_s: float = 0.0  #: what both instances were expected to generate more
    #: what both generated more some seconds later, whatever else happened there; None until that is known, and where
    #: heartbeats did not show the move
    achieved_tokens_per_s: float | None = None
    dropped: Reason = ""  #: why it was not carried out; empty if it was, or that is not known yet


class DgfmRunStatus(Value, frozen=True):
    """A cycle of debts that a gManager had swapped (000 §4.5)."""

    members: Reason  #: who took part, in the order in which each owes the next
    ago_s: Seconds  #: how long ago it began
    predicted_blocks: Count  #: rBlocks that were to come home, of all members together
    home_blocks: Count | None = None  #: those that did; None while it goes on
    why: Reason = ""  #: why it came to nothing, or to less than that; empty if it did not


class ClusterState(Message, frozen=True):
    """What a gManager knows of a whole cluster: its answer to `ClusterQuery`. An rManager answers with an empty one."""

    policy: Word = ""  #: what it decides by; empty from an rManager
    num_instances: Count = 0  #: members, in whatever state
    num_ready: Count = 0  #: of those, the ready ones
    debts: tuple[DebtEdge, ...] = ()  #: who owes whom, as creditors report it; the largest 1,024
    num_debts: Count = 0  #: how many such edges there are
    lent_blocks: Count = 0  #: rBlocks that are lent in all
    plans: tuple[PlanStatus, ...] = ()  #: moves that were planned, the newest first; 64 at most
    num_plans: Count = 0  #: how many were planned since the gManager started
    runs: tuple[DgfmRunStatus, ...] = ()  #: runs of DGFM, the newest first; 16 at most
    num_runs: Count = 0  #: how many there were since the gManager started
    #: more than 0: nothing was looked at, for too many such queries came; seconds until one is answered again
    retry_after_s: Seconds = 0.0
