"""What an rManager reads, grouped by who sends it: gManager, peers, clients. The worker's own are in `from_worker`.

Promises: messages of one sender arrive in order. Each `TryMoveKvcache`, `BlocksReady`, `Renew` and `Release` of a peer
is answered or the peer is gone; leases make every one of them safe to lose.
"""

from __future__ import annotations

from distkv.types import SamplingParams
from distkv.wire.messages.common import (
    Count,
    Epoch,
    InstanceId,
    Member,
    Message,
    RequestId,
    Seconds,
    SpanId,
    SpanRef,
    Value,
)

# --- from a gManager


class Members(Message, frozen=True):
    """The member list, whole; everyone caches it. `version` grows while one gManager runs."""

    version: Count
    members: tuple[Member, ...] = ()


class JoinRefused(Message, frozen=True):
    """The instance cannot be part of this cluster; `reason` says what differs."""

    reason: str


class HeartbeatAck(Message, frozen=True):
    """Heartbeat `seq` is in the ledger. `want_full`: it was not, send everything. `want_join`: who are you?"""

    seq: Count
    want_full: bool = False
    want_join: bool = False


class Candidate(Value, frozen=True, array_like=True):
    """A possible creditor and what it was last known to have free to lend."""

    instance_id: InstanceId
    free_blocks: Count


class Creditors(Message, frozen=True):
    """Up to three candidates, best first: cheapest to reach, then most free (000 §4.4)."""

    borrow_id: str
    candidates: tuple[Candidate, ...] = ()


# --- from peers: contract


class TryMoveKvcache(Message, frozen=True):
    """Reserve up to `num_blocks` rBlocks for `request_id` before any byte moves (001, Listing 1).

    The debtor names the span, so asking twice grants once. ttl_s: the lease it wants.
    """

    span_id: SpanId
    request_id: RequestId
    debtor_id: InstanceId
    debtor_incarnation: int
    num_blocks: Count
    ttl_s: Seconds


class Granted(Message, frozen=True):
    """`slots` of the creditor are reserved, in order, under a lease of `ttl_s`; may be fewer than asked for."""

    span_id: SpanId
    epoch: Epoch
    slots: tuple[int, ...]
    ttl_s: Seconds


class Refused(Message, frozen=True):
    """Nothing is reserved; `free_blocks` is what could be lent now."""

    span_id: SpanId
    reason: str
    free_blocks: Count


class ReadyBlock(Value, frozen=True, array_like=True):
    """A sealed rBlock: the slot of the source's pool it lies in, and the checksum its debtor computed for it."""

    slot: Count
    checksum: int


class BlocksReady(Message, frozen=True):
    """Sealed rBlocks lie ready at `source_id`; the receiver pulls them into its span from position `index` on.

    The source leaves them untouched until `Complete`, `Released`, or the receiver's lease has run out. Sent again, word
    for word, when no answer comes: a receiver that is still reading stays silent, one that has them answers again.
    """

    span: SpanRef
    index: Count
    source_id: InstanceId
    source_incarnation: int
    blocks: tuple[ReadyBlock, ...]


class Complete(Message, frozen=True):
    """Blocks [index, index + num_blocks) of the span were read and verified: they are part of it (004 §4.1).

    With `problem` set nothing was taken over: a read failed, or a checksum did not match.
    """

    span: SpanRef
    index: Count
    num_blocks: Count
    problem: str = ""


class Renew(Message, frozen=True):
    """Leases to keep for another `ttl_s`; answered by `Renewed`."""

    renewal: Count
    spans: tuple[SpanRef, ...]
    ttl_s: Seconds


class Renewed(Message, frozen=True):
    """Renewal `renewal` holds for all its spans but `refused`, which are gone."""

    renewal: Count
    refused: tuple[SpanRef, ...] = ()


class Release(Message, frozen=True):
    """The debtor needs the span no more; answered by `Released` when its last reader is done."""

    span: SpanRef


class Released(Message, frozen=True):
    """The span is gone and nobody reads on its behalf."""

    span: SpanRef


class Reclaim(Message, frozen=True):
    """The creditor wants the span back within `deadline_s`; after that it may refuse to renew."""

    span: SpanRef
    deadline_s: Seconds


# --- from clients


class Submit(Message, frozen=True):
    """Serve a prompt: text, or token ids that are taken as they are. Answered by `TokenChunk`s or one `RequestEnded`.

    timeout_s: how long the request may wait for memory before it fails as retryable.
    """

    request_id: RequestId
    prompt: str | tuple[int, ...]
    params: SamplingParams
    timeout_s: Seconds | None = None


class Cancel(Message, frozen=True):
    """Stop a request; answered by a last chunk with finish_reason "abort" if it was still running."""

    request_id: RequestId


class KeepAlive(Message, frozen=True):
    """The client is there; one that stays silent has its requests cancelled."""


class StatusQuery(Message, frozen=True):
    """What are you doing? Answered by `Status`."""
