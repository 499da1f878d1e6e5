"""What a gManager reads.

Promises: `Join` is answered by `Members` or `JoinRefused`; `Heartbeat` is newest-wins, absolute and may be lost;
the queries are answered at once from what the gManager knows, which may be stale.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from distkv.types import ServingState
from distkv.wire.messages.common import BorrowId, Compat, Count, InstanceId, Member, Message, RequestId, Seconds, Value

MAX_REPORTED = 4096
"""Most placements, and most debtors, of one heartbeat: read in about a millisecond."""
MAX_NAMES = 1024
"""Most instances that a query may name; who has more to name gives those that it doubted or lost last."""
Names = Annotated[tuple[InstanceId, ...], Meta(max_length=MAX_NAMES)]


class Join(Message, frozen=True):
    """An instance is there (sent at start, when its state changes, and when a gManager does not know it)."""

    member: Member  #: the sender
    compat: Compat  #: hash of model, dtype, rBlock layout and protocol version; empty while loading
    #: the same in words, `name value, name value`, so that a refusal can say what differs; empty from former versions
    serves: Compat = ""


class Leave(Message, frozen=True):
    """An instance ends in good order; it owes and lends nothing any more."""

    instance_id: InstanceId  #: the sender
    incarnation: int  #: its incarnation, which ends


class RequestPlacementEntry(Value, frozen=True):
    """How many rBlocks of a request lie on an instance (001, Listing 1)."""

    req_id: RequestId  #: the request
    inst_id: InstanceId  #: the instance whose slots are counted, which is the sender
    num_blocks: Count  #: absolute number of rBlocks; 0 if there are none any more
    local: bool  #: true from the request's debtor, false from a creditor


class Debtor(Value, frozen=True, array_like=True):
    """How many rBlocks an instance has borrowed from the sender of a heartbeat (000, Fig. 4)."""

    instance_id: InstanceId  #: the debtor
    num_blocks: Count  #: rBlocks granted to it, filled or not


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
    total_blocks: Count = 0  #: rBlocks in the pool
    free_blocks: Count = 0  #: rBlocks in nobody's use
    lendable_blocks: Count = 0  #: rBlocks a debtor could be granted now; 0 unless ready
    running: Count = 0  #: requests in the batch
    waiting: Count = 0  #: requests that wait for memory
    waiting_blocks: Count = 0  #: rBlocks that the waiting requests lack
    step_s: Seconds = 0.0  #: recent time per step in seconds, exponential mean


class Refusal(Value, frozen=True, array_like=True):
    """A creditor that refused, and how much it reported as lendable."""

    instance_id: InstanceId  #: the creditor that refused, or granted less than requested
    free_blocks: Count  #: rBlocks it reported as still lendable


class BorrowQuery(Message, frozen=True):
    """A debtor looks for `num_blocks`; what it was refused since its last query updates the ledger (000 §4.4)."""

    instance_id: InstanceId  #: the debtor
    borrow_id: BorrowId  #: names this borrow; repeated in the answer
    num_blocks: Count  #: rBlocks still missing
    #: refusals during this borrow; they correct the ledger before it is read; at most 1,024
    refusals: Annotated[tuple[Refusal, ...], Meta(max_length=MAX_NAMES)] = ()
    exclude: Names = ()  #: instances to leave out, such as the creditor that reclaims its memory; at most 1,024
    suspects: Names = ()  #: instances that the debtor doubts: recommended when no other is left; at most 1,024


class MembersQuery(Message, frozen=True):
    """Who is in the cluster? Answered by `Members`, by gManagers and rManagers alike."""

    incarnation: Count = 0  #: of the sender of the list that the asker has; 0 if it has none
    version: Count = 0  #: of that list: what changed since then is the answer, or all if that is not known any more
    changes_only: bool = False  #: never all: a sign of life is wanted, and changes if they are known


class Locate(Message, frozen=True):
    """Which instance should serve a request of about this many tokens? Answered by `Located`."""

    request_id: RequestId  #: the request; repeated in the answer
    num_tokens: Count = 0  #: estimate of prompt + max_tokens; 0 is unknown
    exclude: Names = ()  #: instances that failed this request before, or were just lost; at most 1,024
