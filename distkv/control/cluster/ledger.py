"""The global debt ledger and the request placement map (000 §4.4 and Fig. 4; 001 §6.1).

Soft state, built from heartbeats alone; it may be stale and is rebuilt from full ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast, get_args

from distkv.control.cluster.policy.interface import InstanceView
from distkv.types import InstanceState
from distkv.wire.messages.common import Member
from distkv.wire.messages.to_gmanager import Heartbeat, RequestPlacementEntry

STATES = frozenset(get_args(InstanceState))


@dataclass(slots=True)
class Entry:
    """What is known of one instance. `promised_…` counts requests sent there since its last heartbeat.

    route: the connection it joined by. challenge: the route by which a newer process asked for its name, and when; that
    one gets it when this one is silent.
    """

    member: Member
    last_heard: float
    route: bytes = b""
    challenge: tuple[bytes, float] | None = None
    compat: str = ""
    heartbeat: Heartbeat | None = None
    lendable: int = 0
    promised_blocks: int = 0
    promised_requests: int = 0
    placement: dict[tuple[str, bool], RequestPlacementEntry] = field(default_factory=dict)

    @property
    def free_blocks(self) -> int:
        """Free blocks less those promised to requests on their way."""
        known = self.member.free_blocks if self.heartbeat is None else self.heartbeat.free_blocks
        return known - self.promised_blocks

    @property
    def load(self) -> int:
        """Requests there and on their way."""
        known = 0 if self.heartbeat is None else self.heartbeat.running + self.heartbeat.waiting
        return known + self.promised_requests

    @property
    def waiting(self) -> int:
        return 0 if self.heartbeat is None else self.heartbeat.waiting

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known to lie there, to be lendable, or to be on its way."""
        counts = self.lendable, self.promised_blocks, self.promised_requests
        return self.heartbeat is None and not self.placement and not any(counts)

    def view(self, state: InstanceState) -> InstanceView:
        """What policies see."""
        return InstanceView(
            instance_id=self.member.instance_id,
            state=state,
            host_key="" if self.member.data is None else self.member.data.host_key,
            block_tokens=self.member.block_tokens,
            free_blocks=self.free_blocks,
            lendable_blocks=self.lendable,
            waiting=self.waiting,
            load=self.load,
        )

    def validate(self, instance_id: str, now: float) -> None:
        """What is known is of this instance, in this incarnation, and nothing is placed that no heartbeat reported."""
        assert self.member.instance_id == instance_id, f"{self.member.instance_id} is filed as {instance_id}"
        assert self.last_heard <= now, f"{instance_id} was heard in the future"
        assert min(self.lendable, self.promised_blocks, self.promised_requests) >= 0, f"{instance_id}: a count below 0"
        beat = self.heartbeat
        if beat is None:
            assert not self.placement, f"{instance_id} holds blocks without a heartbeat"
            return
        assert (beat.instance_id, beat.incarnation) == (instance_id, self.member.incarnation), (
            f"{instance_id} has the heartbeat of another"
        )
        for key, placed in self.placement.items():
            assert key == (placed.req_id, placed.local), f"{instance_id}: {placed} is filed as {key}"
            assert placed.num_blocks > 0, f"{instance_id}: an empty placement is kept"


class Ledger:
    """All instances by id."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}

    def apply(self, heartbeat: Heartbeat, now: float) -> bool:
        """Take a heartbeat in; false if it builds on one that is not here, so that a full one is needed.

        One older than what is known changes nothing and counts as taken.
        """
        entry = self.entries[heartbeat.instance_id]
        entry.last_heard = now
        before = entry.heartbeat
        if before is not None and heartbeat.seq <= before.seq:
            return True
        if heartbeat.full:
            entry.placement = {}
        elif before is None or before.seq < heartbeat.base:
            return False
        for placed in heartbeat.entries:
            key = (placed.req_id, placed.local)
            if placed.num_blocks:
                entry.placement[key] = placed
            else:
                entry.placement.pop(key, None)
        entry.heartbeat = heartbeat
        entry.lendable = heartbeat.lendable_blocks
        entry.promised_blocks = entry.promised_requests = 0
        return True

    def forget(self, instance_id: str) -> None:
        """It is dead: it holds and lends nothing. Should it come back, it must send a full heartbeat."""
        entry = self.entries[instance_id]
        entry.heartbeat, entry.placement = None, {}
        entry.lendable = entry.promised_blocks = entry.promised_requests = 0

    def promise(self, instance_id: str, num_blocks: int) -> None:
        """A request of so many blocks is on its way there."""
        entry = self.entries[instance_id]
        entry.promised_blocks += num_blocks
        entry.promised_requests += 1

    def refused(self, instance_id: str, free_blocks: int) -> None:
        """A debtor reports how much it was refused with: newer than the last heartbeat, but another's word, so it only
        lowers what can be lent, until the next heartbeat."""
        if instance_id in self.entries:
            self.entries[instance_id].lendable = min(free_blocks, self.entries[instance_id].lendable)

    def state(self, instance_id: str, now: float, heartbeat_s: float, dead_after_s: float) -> InstanceState:
        """What its heartbeats say, or their absence."""
        entry = self.entries[instance_id]
        silent_s = now - entry.last_heard
        if entry.member.state == "dead" or silent_s >= dead_after_s:
            return "dead"
        if silent_s >= 3 * heartbeat_s and entry.heartbeat is not None:  # one that loads may be too busy to say so
            return "unreachable"
        reported = entry.member.state if entry.heartbeat is None else entry.heartbeat.state
        return cast(InstanceState, reported) if reported in STATES else "starting"  # of a later version

    def debts(self) -> dict[tuple[str, str], int]:
        """(debtor, creditor) -> blocks, as creditors report them."""
        return {
            (debtor.instance_id, creditor_id): debtor.num_blocks
            for creditor_id, entry in self.entries.items()
            if entry.heartbeat is not None
            for debtor in entry.heartbeat.debtors
            if debtor.num_blocks
        }

    def validate(self, now: float) -> None:
        """Every entry, as of `now`."""
        for instance_id, entry in self.entries.items():
            entry.validate(instance_id, now)

    def placement(self) -> dict[str, dict[str, int]]:
        """request -> instance -> blocks: the request placement map."""
        placed: dict[str, dict[str, int]] = {}
        for instance_id, entry in self.entries.items():
            for (req_id, _), item in entry.placement.items():
                held = placed.setdefault(req_id, {})
                held[instance_id] = held.get(instance_id, 0) + item.num_blocks
        return placed
