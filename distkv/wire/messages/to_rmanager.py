"""What an rManager reads, grouped by who sends it: gManager, peers, clients. The worker's own are in `from_worker`.

Promises: messages of one sender arrive in order. Each `TryMoveKvcache`, `BlocksReady`, `Renew` and `Release` of a peer
is answered or the peer is gone; leases make every one of them safe to lose.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from distkv.token_ids import ID_BYTES
from distkv.types import SamplingParams
from distkv.wire.messages.common import (
    Amount,
    BorrowId,
    Checksum,
    Count,
    Epoch,
    InstanceId,
    Member,
    Message,
    PackedIdsInPlace,
    PlanEpoch,
    Reason,
    RequestId,
    Seconds,
    Share,
    SpanId,
    SpanRef,
    Value,
    Word,
)

MAX_READY_BLOCKS = 32
MAX_ITEMS = 4096
"""Spans in one `Renew`, positions in one `Release`, and so in their answers. Who has more sends several."""
MAX_GRANTED_BLOCKS = 2**18
"""Of one grant: four million tokens in rBlocks of 16. Who wants more asks for the rest anew, or somebody else."""

# --- from a gManager


class Members(Message, frozen=True):
    """The member list, or what changed in it; everyone caches it."""

    version: Count  #: grows with every change within one incarnation of the sender; what the list is at now
    #: instances that are new or changed since `base`, dead ones for five minutes; `free_blocks` is of that moment
    members: tuple[Member, ...] = ()
    incarnation: Count = 0  #: of the sender; versions of different ones are not comparable. 0 from former versions
    base: Count = 0  #: what changed since this version; 0: the whole list, or its beginning
    gone: tuple[InstanceId, ...] = ()  #: no members any more
    more: bool = False  #: the rest follows in the next message
    newest: Count = 0  #: with `more`: the version that the last part brings
    policy: Word = "contract"  #: who may lend to whom, see `distkv-gmanager --policy`; unknown ones are as `contract`
    #: for so long yet others may join that were started with those listed; 0 from instances and former versions
    settles_in_s: Seconds = 0.0


class JoinRefused(Message, frozen=True):
    """The instance cannot be part of this cluster; `reason` says what differs."""

    reason: Reason  #: one sentence saying what differs
    is_taken: bool = False  #: another process serves under the instance's name, and it lives


class HeartbeatAck(Message, frozen=True):
    """Answer to a `Heartbeat`; may be lost."""

    seq: Count  #: the heartbeat that is meant
    want_full: bool = False  #: it was not taken in; send everything next time
    want_join: bool = False  #: the sender is unknown; send `Join`
    incarnation: Count = 0  #: of the gManager
    version: Count = 0  #: of the member list that it sent last; who has an older one asks with `MembersQuery`
    policy: Word = "contract"  #: as in `Members`
    #: to who has requests waiting: tokens that another instance has memory for, the one with most
    room_tokens: Count = 0


class Redispatched(Value, frozen=True, array_like=True):
    """Where a request could begin at once."""

    req_id: RequestId  #: the request
    inst_id: InstanceId  #: an instance that has memory for all of it, and where it would begin at once


class Redispatch(Message, frozen=True):
    """Answer to `RedispatchQuery`: those of its requests that should go elsewhere. They are counted there already."""

    requests: tuple[Redispatched, ...] = ()  #: the others stay


class Candidate(Value, frozen=True, array_like=True):
    """An instance that may lend, and how much it could by its last heartbeat."""

    instance_id: InstanceId  #: an instance that may lend
    free_blocks: Amount  #: what it was last known to have to lend, in rBlocks; may be stale


class Creditors(Message, frozen=True):
    """Up to three candidates, best first: cheapest to reach, then most free (000 §4.4)."""

    borrow_id: BorrowId  #: from the query
    #: up to three; those that are cheapest to reach first, of these the ones with most to lend
    candidates: tuple[Candidate, ...] = ()
    #: an instance that could begin all of the request at once, which goes there instead; then nobody is to be asked
    go_to: Annotated[str, Meta(max_length=128)] = ""


class MoveKvcache(Message, frozen=True):
    """The receiver is to move rBlocks of a request that it serves to another instance, or home (001, Listing 1).

    Not answered: what cannot be done is dropped, and planned again by what the next heartbeats say. May be lost.
    """

    request_id: RequestId  #: a running request of the receiver
    num_blocks: Amount  #: how many rBlocks, at most: its oldest full ones that lie at the receiver
    destination: InstanceId  #: where to; the receiver itself: so many of those at creditors come home
    epoch: PlanEpoch  #: of this plan; one that is not newer than the newest of the same gManager is stale
    debtor_incarnation: int  #: of the receiver, as far as the gManager knows
    seq: Count  #: of the receiver's newest heartbeat when this was planned; after four more of them it is stale
    gain_tokens_per_s: Annotated[float, Meta(ge=0)] = 0.0  #: what both instances are expected to generate more


class Freeze(Message, frozen=True):
    """Begin a run of DGFM: pin what is owed to `creditor_id` and lent to `debtor_id`, and answer `Frozen` (000 §4.5).

    The next and the former member of a cycle of debts. Requests go on, and may end; the freeze ends by itself."""

    run: PlanEpoch  #: the run
    creditor_id: InstanceId  #: rBlocks that lie there are to come home
    debtor_id: InstanceId  #: rBlocks that were lent to it are to go home
    num_blocks: Amount  #: of each, as far as the gManager knows
    duration_s: Seconds  #: from receipt, after which the freeze is over


class Swap(Message, frozen=True):
    """All members have frozen: bring home `num_blocks` from the creditor of the run, and say so by `Swapped`."""

    run: PlanEpoch  #: as in `Freeze`
    num_blocks: Amount  #: the smallest debt of the cycle


class Thaw(Message, frozen=True):
    """The run is over, whatever has come of it. Not answered."""

    run: PlanEpoch  #: as in `Freeze`


# --- from peers: contract


class TryMoveKvcache(Message, frozen=True):
    """Reserve up to `num_blocks` rBlocks for `request_id` before any byte moves (001, Listing 1).

    The debtor names the span, so sending it twice grants once.
    """

    span_id: SpanId  #: name of the span that would come about
    request_id: RequestId  #: the request it is for
    debtor_id: InstanceId  #: the asking instance; must be the envelope's sender
    debtor_incarnation: int  #: its incarnation; loans to a former one are taken back
    num_blocks: Amount  #: rBlocks requested; 0: it needs none any more, and none is to be kept for it
    ttl_s: Seconds  #: lease requested, seconds
    waited_s: Seconds = 0.0  #: how long the request has waited for memory; one that waits for long is kept some
    #: the debtor alone could hold the request, later: who has borrowed, or has one waiting that fits, lends nothing
    is_avoidable: bool = False
    #: the request runs, and gives way for want of it: what is kept for those that wait is not kept from it
    is_running: bool = False


class Granted(Message, frozen=True):
    """`slots` of the creditor are reserved, in order, under a lease of `ttl_s`; may be fewer than asked for."""

    span_id: SpanId  #: as in `TryMoveKvcache`
    epoch: Epoch  #: of this grant
    #: the creditor's slots, in span order; may be fewer than requested, at most 262,144
    slots: Annotated[tuple[Count, ...], Meta(max_length=MAX_GRANTED_BLOCKS)]
    ttl_s: Seconds  #: lease granted, seconds; at most the creditor's own `lease_s`
    serve_fraction: Share = 0.0  #: of the time of the creditor's own steps, what serving its debtors takes now
    #: its limit: above it the creditor lends nothing more and reclaims; 1 is no limit
    max_serve_fraction: Share = 1.0


class Refused(Message, frozen=True):
    """Nothing is reserved; `free_blocks` is what could be lent now."""

    span_id: SpanId  #: as in `TryMoveKvcache`
    reason: Reason  #: one sentence
    free_blocks: Amount  #: rBlocks that could be lent now
    #: the creditor drains, and lends only to requests that have memory there and no other place
    is_draining: bool = False
    retry_after_s: Seconds = 0.0  #: the creditor serves as much as it may, for so long as far as it can tell
    #: what is free is kept from this request: for one that waits, because its own instance could hold it, or for what
    #: its debtor is; `free_blocks` is what others could have
    is_kept: bool = False


class Vacant(Message, frozen=True):
    """As much is free as the creditor keeps for a request that it refused, or lent less than it asked for: the debtor
    may ask again at once, and not when it next would. May be lost."""

    request_id: RequestId  #: as in `TryMoveKvcache`
    free_blocks: Amount  #: rBlocks that could be lent to it now


class ReadyBlock(Value, frozen=True, array_like=True):
    """A full rBlock: the slot of the source's pool it lies in, and the checksum its debtor computed for it."""

    slot: Count  #: where the rBlock lies in the source's pool
    checksum: Checksum  #: XXH3 (64 bit, unsigned) of its bytes, from the debtor's table


class BlocksReady(Message, frozen=True):
    """Full, checksummed rBlocks lie at `source_id`; the receiver pulls them into its span from position `index` on.

    The source leaves them untouched until `Complete`, `Released`, or the receiver's lease has run out. Sent again, word
    for word, when no answer comes: a receiver that is still reading stays silent, one that has them answers again.
    """

    span: SpanRef  #: the span they go into
    index: Count  #: position in the span of the first of them; positions are filled in order
    source_id: InstanceId  #: instance whose pool they lie in: the debtor, or a former creditor when a span moves on
    source_incarnation: int  #: its incarnation
    blocks: Annotated[tuple[ReadyBlock, ...], Meta(max_length=MAX_READY_BLOCKS)]  #: the rBlocks, in span order


class Complete(Message, frozen=True):
    """Blocks [index, index + num_blocks) of the span were read and verified: they are part of it (004 §4.1).

    With `problem` set nothing was taken over: a read failed, or a checksum did not match.
    """

    span: SpanRef  #: the span
    index: Count  #: as in `BlocksReady`
    num_blocks: Amount  #: rBlocks read and verified; they are part of the span now
    problem: Reason = ""  #: why nothing was taken over; empty if all went well


class Renew(Message, frozen=True):
    """Leases to keep for another `ttl_s`; answered by `Renewed`."""

    renewal: Count  #: names this renewal; repeated in the answer
    spans: Annotated[tuple[SpanRef, ...], Meta(max_length=MAX_ITEMS)]  #: spans to keep
    ttl_s: Seconds  #: for how long from receipt, seconds
    #: rBlocks that the debtor has free to bring home what it borrowed, and that its requests are not about to grow into
    room_blocks: Amount = 0


class Renewed(Message, frozen=True):
    """Renewal `renewal` holds for all its spans but `refused`, which are gone."""

    renewal: Count  #: as in `Renew`
    #: spans that are unknown, another debtor's, of another epoch, or being taken back
    refused: Annotated[tuple[SpanRef, ...], Meta(max_length=MAX_ITEMS)] = ()
    #: lease of the spans that were not refused, seconds from receipt of the `Renew`; None is as long as `Granted` said
    ttl_s: Seconds | None = None
    incarnation: int = 0  #: the answering creditor's; 0 is unknown. A higher one than before shows that it restarted


class Release(Message, frozen=True):
    """The debtor needs the span, or a part of it, no more; answered by `Released` when the last reader is done.

    A position that was given back is never used again in this span, so it may be given back twice."""

    span: SpanRef  #: the span; epoch `[0, 0]` stands for any
    #: which positions of it; none stands for all
    positions: Annotated[tuple[Count, ...], Meta(max_length=MAX_ITEMS)] = ()


class Released(Message, frozen=True):
    """The span, or these positions of it, are gone and nobody reads on their behalf."""

    span: SpanRef  #: as in `Release`
    #: positions that are gone; none stands for all
    positions: Annotated[tuple[Count, ...], Meta(max_length=MAX_ITEMS)] = ()


class Reclaim(Message, frozen=True):
    """The debtor must release the span, or a part of it, within `deadline_s`; if that is 0, at once and with what lies
    there. After that the creditor refuses to renew.

    It comes by the connection by which the span was requested, and again while it is not met: the newest counts."""

    span: SpanRef  #: the span to give back
    deadline_s: Seconds  #: seconds until the creditor exits, or takes the span back
    keep_blocks: Amount = 0  #: how many rBlocks of it the debtor may keep, whichever; 0 is none
    #: the creditor drains: it wants no memory for itself, and a debtor that drains too need not hurry
    is_draining: bool = False


# --- from clients


class Submit(Message, frozen=True):
    """Serve a prompt. Answered by `TokenChunk`s, the last with a finish_reason, or by one `RequestEnded`."""

    request_id: RequestId  #: chosen by the client; no running request of the instance may have it
    params: SamplingParams  #: how to sample and when to stop, see below
    prompt: str = ""  #: text; empty where its token ids are given
    #: seconds the request may take in all, waiting included; what is generated by then was sent; None is no limit
    timeout_s: Seconds | None = None
    prompt_token_ids: PackedIdsInPlace | None = None  #: the prompt as token ids, which are taken as they are
    can_move: bool = False  #: the client sends it to another instance when `RequestEnded.go_to` says so
    #: since it was first sent to an instance; of that up to 30 s count for its age here, where others may pass it for
    #: 2 s all the same
    waited_s: Seconds = 0.0

    def __post_init__(self) -> None:
        ids = self.prompt_token_ids
        if ids is None:
            return
        if self.prompt:
            raise ValueError("it has both a prompt and prompt_token_ids")
        if len(ids) % ID_BYTES:
            raise ValueError(f"prompt_token_ids: {len(ids)} bytes are no token ids of {ID_BYTES} bytes each")


class Cancel(Message, frozen=True):
    """Stop a request; answered by a last chunk with finish_reason "abort" if it was still running."""

    request_id: RequestId  #: the request


class KeepAlive(Message, frozen=True):
    """The client still runs; one that stays silent has its requests cancelled."""


class StatusQuery(Message, frozen=True):
    """Answered by `Status`."""
