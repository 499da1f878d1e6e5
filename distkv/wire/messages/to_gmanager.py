"""What a gManager reads.

Promises: `Join` is answered by `Members` or `JoinRefused`; `Heartbeat` is newest-wins, absolute and may be lost;
the queries are answered at once from what the gManager knows, which may be stale.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from distkv.types import ServingState
from distkv.wire.messages.common import (
    Amount,
    BorrowId,
    Compat,
    Count,
    InstanceId,
    Member,
    Message,
    PlanEpoch,
    Reason,
    RequestId,
    Seconds,
    Sum,
    Value,
)
from distkv.wire.messages.profile import Profile

MAX_REPORTED = 4096
"""Most placements, and most debtors, of one heartbeat: read in about a millisecond."""
MAX_NAMES = 1024
"""Most instances that a query may name; who has more to name gives those that it doubted or lost last."""
MAX_WAITING_SIZES = 16
"""Waiting requests whose needs a heartbeat tells."""
MAX_LONGEST = 8
"""Running requests that a heartbeat names because blocks of them could leave."""
MAX_DROPPED = 16
"""Planned moves that a heartbeat names because they were dropped."""
MAX_ARRIVED = 256
"""Requests that a heartbeat names because they have come."""
MAX_REDISPATCHED = 16
"""Most requests of one `RedispatchQuery`."""
Names = Annotated[tuple[InstanceId, ...], Meta(max_length=MAX_NAMES)]


class Join(Message, frozen=True):
    """An instance is there (sent at start, when its state changes, and when a gManager does not know it)."""

    member: Member  #: the sender
    compat: Compat  #: hash of model, dtype, rBlock layout and protocol version; empty while loading
    #: the same in words, `name value, name value`, so that a refusal can say what differs; empty from former versions
    serves: Compat = ""
    profile: Profile | None = None  #: what its hardware does, measured by `distkv profile`; None if that is not known
    swaps: bool = False  #: whether it knows `Freeze`; former versions do not
    belongs: bool = False  #: whether a gManager has let it in before, and none refused it since


class Leave(Message, frozen=True):
    """An instance ends in good order; it owes and lends nothing any more."""

    instance_id: InstanceId  #: the sender
    incarnation: int  #: its incarnation, which ends


class RequestPlacementEntry(Value, frozen=True):
    """How many rBlocks of a request lie on an instance (001, Listing 1)."""

    req_id: RequestId  #: the request
    inst_id: InstanceId  #: the instance whose slots are counted, which is the sender
    num_blocks: Amount  #: absolute number of rBlocks; 0 if there are none any more
    local: bool  #: true from the request's debtor, false from a creditor


class Debtor(Value, frozen=True, array_like=True):
    """How many rBlocks an instance has borrowed from the sender of a heartbeat (000, Fig. 4)."""

    instance_id: InstanceId  #: the debtor
    num_blocks: Amount  #: rBlocks granted to it, filled or not


class LongRequest(Value, frozen=True, array_like=True):
    """A running request, by what of it could lie elsewhere (001 §6.2)."""

    request_id: RequestId  #: the request
    movable_blocks: Amount  #: its full rBlocks in the sender's pool that are to stay there
    remote_blocks: Amount  #: its rBlocks that lie, or are to lie, at creditors


class DroppedMove(Value, frozen=True, array_like=True):
    """A `MoveKvcache` that was not carried out."""

    epoch: PlanEpoch  #: as in `MoveKvcache`
    why: Reason = ""  #: in words


class Heartbeat(Message, frozen=True):
    """State of one instance, every period; newest wins, all numbers are absolute (000 §4.4; 001 §6.1)."""

    instance_id: InstanceId  #: the sender
    incarnation: int  #: its incarnation
    seq: Count  #: grows by one with every heartbeat of an incarnation
    base: Count  #: `entries` holds what changed since this heartbeat, the newest that was acknowledged; 0 when `full`
    full: bool  #: `entries` is complete and replaces what is known
    #: the placement of requests here; at most 4,096, what is left out comes with the next heartbeats
    entries: Annotated[tuple[RequestPlacementEntry, ...], Meta(max_length=MAX_REPORTED)] = ()
    #: the loans given, by debtor; at most 4,096, the largest
    debtors: Annotated[tuple[Debtor, ...], Meta(max_length=MAX_REPORTED)] = ()
    state: ServingState = "ready"  #: what it says of itself; that it is unreachable or dead, others say
    total_blocks: Amount = 0  #: rBlocks in the pool
    free_blocks: Amount = 0  #: rBlocks in nobody's use
    lendable_blocks: Amount = 0  #: rBlocks a debtor could be granted now; 0 unless ready
    running: Amount = 0  #: requests in the batch
    waiting: Amount = 0  #: requests that wait for memory
    waiting_blocks: Sum = 0  #: rBlocks that the waiting requests lack
    step_s: Seconds = 0.0  #: recent time per step in seconds, exponential mean
    context_tokens: Sum = 0  #: KV tokens of the running requests, wherever they lie
    prefill_tokens: Sum = 0  #: tokens of running and waiting requests that are to be computed before they decode
    borrowed_blocks: Sum = 0  #: rBlocks granted to it by creditors, filled or not
    lent_blocks: Amount = 0  #: rBlocks granted to debtors, filled or not
    #: where the policy plans moves: rBlocks that each of the oldest waiting requests lacks, oldest first; at most 16
    waiting_sizes: Annotated[tuple[Sum, ...], Meta(max_length=MAX_WAITING_SIZES)] = ()
    #: recent time of a step of decodes in seconds, as far as it does not grow with the batch; 0 is unknown
    decode_base_s: Seconds = 0.0
    decode_row_s: Seconds = 0.0  #: and for each request in it
    prompt_token_s: Seconds = 0.0  #: recent time per token of a prompt in seconds; 0 is unknown
    output_tokens: Sum = 0  #: what a request is expected to generate, by those that ended there; 0 is unknown
    #: where the policy plans moves: the running requests with most movable rBlocks, most first; at most 8
    longest: Annotated[tuple[LongRequest, ...], Meta(max_length=MAX_LONGEST)] = ()
    #: rBlocks that the running requests are expected to need yet, besides what is kept for them at creditors
    growing_blocks: Sum = 0
    max_num_seqs: Amount = 0  #: most requests in its batch; 0 is not known
    #: where the policy plans moves: tokens that each of those in `waiting_sizes` would need memory for at an instance
    #: that it is sent to instead; 0 if it has begun or has to stay
    waiting_tokens: Annotated[tuple[Sum, ...], Meta(max_length=MAX_WAITING_SIZES)] = ()
    #: planned moves that were dropped of late, each in four heartbeats; at most 16, the newest
    dropped_moves: Annotated[tuple[DroppedMove, ...], Meta(max_length=MAX_DROPPED)] = ()
    #: requests that have come since the heartbeat before, whatever became of them; at most 256, the newest
    arrived: Annotated[tuple[RequestId, ...], Meta(max_length=MAX_ARRIVED)] = ()
    #: tokens that it generated each second of the last 5 s, or since the heartbeat before if that is longer ago
    generated_per_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    wanted_back: bool = False  #: it demanded lent memory back in the last 30 s: no move there is to be planned


def as_sign_of_life(heartbeat: Heartbeat) -> Heartbeat:
    """For a gManager that stands by: that its sender lives and how full it is, but no placement, loan or request by
    which it would plan beside the one that does. It builds on itself, which nobody has: what follows is not taken for
    all that there is."""
    return msgspec.structs.replace(
        heartbeat,
        base=heartbeat.seq,
        full=False,
        entries=(),
        debtors=(),
        waiting_sizes=(),
        waiting_tokens=(),
        longest=(),
        dropped_moves=(),
    )


class Refusal(Value, frozen=True, array_like=True):
    """A creditor that refused, and how much it reported as lendable."""

    instance_id: InstanceId  #: the creditor that refused, or granted less than requested
    free_blocks: Amount  #: rBlocks it reported as still lendable


class BorrowQuery(Message, frozen=True):
    """A debtor looks for `num_blocks`; what it was refused since its last query updates the ledger (000 §4.4)."""

    instance_id: InstanceId  #: the debtor
    borrow_id: BorrowId  #: names this borrow; repeated in the answer
    num_blocks: Amount  #: rBlocks still missing
    #: refusals during this borrow; they correct the ledger before it is read; at most 1,024
    refusals: Annotated[tuple[Refusal, ...], Meta(max_length=MAX_NAMES)] = ()
    exclude: Names = ()  #: instances to leave out, such as the creditor that reclaims its memory; at most 1,024
    suspects: Names = ()  #: instances that the debtor doubts: recommended when no other is left; at most 1,024
    #: tokens that all of the request needs memory for, if it has not begun and may go elsewhere; 0 if it stays
    movable_tokens: Sum = 0
    request_id: Annotated[str, Meta(max_length=256)] = ""  #: that request; empty if it stays
    prompt_tokens: Sum = 0  #: of `movable_tokens`, what is to be computed before it decodes; 0 is unknown


class WaitingRequest(Value, frozen=True, array_like=True):
    """A request that waits where it is, and of which nothing was computed yet."""

    req_id: RequestId  #: the request
    num_tokens: Sum  #: what it needs memory for: its prompt, and what its output is expected to get
    prompt_tokens: Sum = 0  #: of these, what is to be computed before it decodes; 0 is unknown


class RedispatchQuery(Message, frozen=True):
    """These requests have waited for memory here: could they begin at once elsewhere? Answered by `Redispatch`."""

    instance_id: InstanceId  #: where they wait
    #: at most 16, the one that has waited longest first
    requests: Annotated[tuple[WaitingRequest, ...], Meta(max_length=MAX_REDISPATCHED)] = ()


class Frozen(Message, frozen=True):
    """Answer to `Freeze`: how much the sender could swap; may be lost."""

    instance_id: InstanceId  #: the sender
    run: PlanEpoch  #: as in `Freeze`
    #: rBlocks that lie at the run's creditor and can come home, at most as many as `Freeze` named; 0: nothing is frozen
    num_blocks: Amount = 0
    spare_blocks: Amount = 0  #: slots that it has set aside to begin with
    reason: Reason = ""  #: why nothing is frozen


class Swapped(Message, frozen=True):
    """The sender's part of a run is over; may be lost."""

    instance_id: InstanceId  #: the sender
    run: PlanEpoch  #: as in `Swap`
    num_blocks: Amount  #: rBlocks that came home


class MembersQuery(Message, frozen=True):
    """Who is in the cluster? Answered by `Members`, by gManagers and rManagers alike."""

    incarnation: Count = 0  #: of the sender of the list that the asker has; 0 if it has none
    version: Count = 0  #: of that list: what changed since then is the answer, or all if that is not known any more
    changes_only: bool = False  #: never all: a sign of life is wanted, and changes if they are known


class Locate(Message, frozen=True):
    """Which instance should serve a request of about this many tokens? Answered by `Located`."""

    request_id: RequestId  #: the request; repeated in the answer
    num_tokens: Sum = 0  #: estimate of prompt + max_tokens; 0 is unknown
    prompt_tokens: Sum = 0  #: estimate of the prompt alone; 0 is unknown
    exclude: Names = ()  #: instances that failed this request before, or were just lost; at most 1,024


class ExplainQuery(Message, frozen=True):
    """Why does a request lie where it lies? Answered by `Explained` of an rManager, by `Dispatched` of a gManager."""

    request_id: RequestId  #: a request, or what several were made of: an HTTP request of several choices


class ClusterQuery(Message, frozen=True):
    """Who owes whom, and what was decided lately? Answered by `ClusterState`."""
