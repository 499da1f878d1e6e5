"""What a gManager reads.

Promises: `Join` is answered by `Members` or `JoinRefused`; `Heartbeat` is newest-wins, absolute and may be lost;
the queries are answered at once from what the gManager knows, which may be stale.
"""

from __future__ import annotations

from distkv.wire.messages.common import Count, InstanceId, Member, Message, RequestId, Seconds, Value


class Join(Message, frozen=True):
    """An instance is there (sent at start, when its state changes, and when a gManager does not know it)."""

    member: Member
    compat: str


class Leave(Message, frozen=True):
    """An instance ends in good order; it owes and lends nothing any more."""

    instance_id: InstanceId
    incarnation: int


class RequestPlacementEntry(Value, frozen=True):
    """How many rBlocks of a request lie on an instance; `local` on its debtor, not on a creditor (001, Listing 1).

    num_blocks is absolute; 0 means gone.
    """

    req_id: RequestId
    inst_id: InstanceId
    num_blocks: Count
    local: bool


class Debtor(Value, frozen=True, array_like=True):
    """How many rBlocks an instance has borrowed from the sender of a heartbeat (000, Fig. 4)."""

    instance_id: InstanceId
    num_blocks: Count


class Heartbeat(Message, frozen=True):
    """State of one instance, every period (000 §4.4; 001 §6.1).

    entries: those changed since heartbeat `base`, the last one acknowledged; all of them if `full`.
    waiting_blocks: rBlocks that waiting requests need. step_s: time of recent steps, smoothed.
    """

    instance_id: InstanceId
    incarnation: int
    seq: Count
    base: Count
    full: bool
    entries: tuple[RequestPlacementEntry, ...] = ()
    debtors: tuple[Debtor, ...] = ()
    state: str = "ready"
    total_blocks: Count = 0
    free_blocks: Count = 0
    lendable_blocks: Count = 0
    running: Count = 0
    waiting: Count = 0
    waiting_blocks: Count = 0
    step_s: Seconds = 0.0


class Refusal(Value, frozen=True, array_like=True):
    """A creditor that said no, and how much it said to have free."""

    instance_id: InstanceId
    free_blocks: Count


class BorrowQuery(Message, frozen=True):
    """A debtor looks for `num_blocks`; what it was refused since its last query updates the ledger (000 §4.4)."""

    instance_id: InstanceId
    borrow_id: str
    num_blocks: Count
    refusals: tuple[Refusal, ...] = ()
    exclude: tuple[InstanceId, ...] = ()


class MembersQuery(Message, frozen=True):
    """Who is in the cluster? Answered by `Members`, by gManagers and rManagers alike."""


class Locate(Message, frozen=True):
    """Which instance should serve a request of about this many tokens? Answered by `Located`."""

    request_id: RequestId
    num_tokens: Count = 0
    exclude: tuple[InstanceId, ...] = ()
