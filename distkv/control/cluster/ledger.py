"""The global debt ledger and the request placement map (000 §4.4 and Fig. 4; 001 §6.1).

Soft state, built from heartbeats alone; it may be stale and is rebuilt from full ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import get_args

import msgspec

from distkv.control.cluster.debts.debt_graph import DebtGraph
from distkv.control.cluster.indices.availability import Availability, Standing
from distkv.control.cluster.planning.balance import NOWHERE, BalanceIndex, place_of
from distkv.control.cluster.policy.interface import MOST_LOAD, InstanceView
from distkv.control.cluster.promises import Promises
from distkv.control.performance.model import PerformanceModel
from distkv.types import InstanceState
from distkv.wire.messages.common import Member
from distkv.wire.messages.profile import Profile
from distkv.wire.messages.to_gmanager import (
    MAX_REPORTED,
    MAX_WAITING_SIZES,
    Heartbeat,
    RequestPlacementEntry,
    WaitingRequest,
)

STATES: dict[str, InstanceState] = {state: state for state in get_args(InstanceState)}


@dataclass(slots=True)
class Entry:
    """What is known of one instance. promises: requests sent there that its heartbeats do not know. `held` are rBlocks
    that debtors were recommended since the last one, and `held_for` how many of them to whom. sent_on: tokens of
    requests that waited there and were sent elsewhere since then, sent_on_prompts those of their prompts.

    placement: where its requests lie, as of the heartbeat `placed_seq`; empty and 0 while that is not known.

    heard_s: when it was last heard, in attentive time. route: the connection it joined by. challenge: the route by
    which another process asked for its name, and when; that one gets it when this one is silent. state: as told last.
    unreachable_after_s, dead_after_s: silence until it counts as that. belongs: as in `Join`.
    """

    member: Member
    heard_s: float
    route: bytes = b""
    challenge: tuple[bytes, float] | None = None
    compat: str = ""
    serves: str = ""
    belongs: bool = False
    model: PerformanceModel | None = None
    state: InstanceState = "starting"
    unreachable_after_s: float = math.inf
    dead_after_s: float = math.inf
    heartbeat: Heartbeat | None = None
    lendable: int = 0
    promises: Promises = field(default_factory=Promises)
    held: int = 0
    held_for: dict[str, int] = field(default_factory=dict)
    sent_on: list[int] = field(default_factory=list)
    sent_on_prompts: int = 0
    placement: dict[tuple[str, bool], RequestPlacementEntry] = field(default_factory=dict)
    placed_seq: int = 0
    _lent: dict[str, int] | None = None

    def predict_by(self, profile: Profile | None) -> None:
        """Its hardware does what this says."""
        if profile is None:
            self.model = None
        elif self.model is None or self.model.profile != profile:
            self.model = PerformanceModel(profile)

    def keeps_name_from(self, member: Member, route: bytes, now_s: float) -> str | None:
        """Why another process that joins by this name cannot have it while this one lives; empty if it can. None where
        that is not known yet: whether this one is heard from now on will tell. now_s: attentive time."""
        if route == self.route:
            is_older = member.incarnation < self.member.incarnation
            return f"a newer process serves as {member.instance_id} already (pid {self.member.pid})" if is_older else ""
        if self.challenge is None or self.challenge[0] != route:
            self.challenge = route, now_s
        if self.heard_s <= self.challenge[1]:
            return None
        return f"another process serves as {member.instance_id} (pid {self.member.pid}), and it lives"

    @property
    def reported_free_blocks(self) -> int:
        """Free blocks by its last word; never more than it joined with."""
        known = self.member.free_blocks if self.heartbeat is None else self.heartbeat.free_blocks
        return min(known, self.member.total_blocks)

    @property
    def lives(self) -> bool:
        """Whether it was heard lately."""
        return self.state not in ("dead", "unreachable")

    @property
    def reported_state(self) -> InstanceState:
        """What it says of itself; one that has left is dead, and one that does not say what it serves is starting."""
        if self.member.state == "dead":
            return "dead"
        reported = self.member.state if self.heartbeat is None else self.heartbeat.state
        # What is not known is of a later version.
        return STATES.get(reported, "starting") if self.compat else "starting"

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known to lie there, to be lendable, or to be on its way."""
        counts = self.lendable, self.promises.num_requests, self.held
        return self.heartbeat is None and not self.placement and not any(counts)

    def view(self) -> InstanceView:
        """What policies see. By position, in the order of its fields: a question looks at a dozen of these, and to name
        each field takes four times as long as all of the rest."""
        member, beat, model = self.member, self.heartbeat, self.model
        if beat is None:
            beat = Heartbeat(
                instance_id=member.instance_id, incarnation=0, seq=0, base=0, full=True, free_blocks=member.free_blocks
            )
        total = member.total_blocks
        room = (beat.free_blocks if beat.free_blocks < total else total) - self.promises.num_blocks
        sizes, tokens = self._still_waiting(beat)
        return InstanceView(
            member.instance_id,
            self.state,
            "" if member.data is None else member.data.host_key,
            member.block_tokens,
            room if room > 0 else 0,
            self.lendable - self.held,
            beat.waiting,
            beat.running + beat.waiting + self.promises.num_requests,
            None if model is None else model.profile,
            model,
            -room if room < 0 else 0,
            total,
            beat.running,
            beat.waiting_blocks,
            beat.step_s,
            beat.context_tokens,
            max(0, beat.prefill_tokens - self.sent_on_prompts) + self.promises.prompt_tokens,
            beat.borrowed_blocks,
            beat.lent_blocks,
            beat.decode_base_s,
            beat.decode_row_s,
            beat.prompt_token_s,
            beat.output_tokens,
            sizes,
            tokens,
            beat.longest,
            beat.growing_blocks,
            beat.max_num_seqs,
            beat.generated_per_s,
            member.max_model_len,
            beat.wanted_back,
        )

    def _still_waiting(self, beat: Heartbeat) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """`waiting_sizes` and `waiting_tokens` of a heartbeat, without those that were sent on since it."""
        if not self.sent_on:
            return beat.waiting_sizes, beat.waiting_tokens
        gone, staying = list(self.sent_on), []
        for size, tokens in zip(beat.waiting_sizes, beat.waiting_tokens, strict=False):
            if tokens in gone:
                gone.remove(tokens)
            else:
                staying.append((size, tokens))
        return tuple(size for size, _ in staying), tuple(tokens for _, tokens in staying)

    def standing(self) -> Standing | None:
        """Where it stands among those that can be recommended; None if it is not ready. The same values as `view` has,
        computed without one, because every heartbeat needs them."""
        if self.state != "ready":
            return None
        member, beat = self.member, self.heartbeat
        free, load, waits = member.free_blocks, self.promises.num_requests, False
        if beat is not None:
            free, load, waits = beat.free_blocks, load + beat.running + beat.waiting, beat.waiting > 0
        if free > member.total_blocks:
            free = member.total_blocks
        minus_room = (self.promises.num_blocks - free) * (member.block_tokens or 1)
        host_key = "" if member.data is None else member.data.host_key
        return host_key, waits, load if load < MOST_LOAD else MOST_LOAD, minus_room, self.held - self.lendable

    def lent_to(self, debtor_id: str) -> int:
        """rBlocks that it lends to a debtor, with what it was recommended for since its last heartbeat."""
        if self._lent is None:
            beat = self.heartbeat
            self._lent = {} if beat is None else {one.instance_id: one.num_blocks for one in beat.debtors}
        return self._lent.get(debtor_id, 0) + self.held_for.get(debtor_id, 0)

    def place(self, heartbeat: Heartbeat) -> bool:
        """Take in where requests lie by a heartbeat newer than those before; false if it builds on one that is not
        here. One that builds on itself is no more than a sign of life."""
        if heartbeat.full or heartbeat.base == heartbeat.seq:
            self.placement, self.placed_seq = {}, 0
        if not heartbeat.full and self.placed_seq < max(1, heartbeat.base):
            return False
        for placed in heartbeat.entries:
            key = (placed.req_id, placed.local)
            if placed.num_blocks:
                self.placement[key] = placed
            else:
                self.placement.pop(key, None)
        if len(self.placement) > self.member.total_blocks + MAX_REPORTED:  # each has an rBlock of its pool, or is gone
            self.placement, self.placed_seq = {}, 0
            return False
        self.placed_seq = heartbeat.seq
        return True

    def start_anew(self) -> None:
        """It has just told how it is, or is dead: nothing is held back there."""
        self.held, self.sent_on_prompts, self._lent = 0, 0, None
        if self.held_for:
            self.held_for.clear()
        if self.sent_on:
            self.sent_on.clear()

    def as_member(self, *, lends: bool = True) -> Member:
        """Its line in the member list. lends: whether instances lend to each other at all."""
        member, free = self.member, self.reported_free_blocks
        lendable = member.lendable_blocks if lends else 0
        return msgspec.structs.replace(member, state=self.state, free_blocks=free, lendable_blocks=lendable)

    def validate(self, instance_id: str, now_s: float) -> None:
        """What is known is of this instance, in this incarnation, and nothing is placed that no heartbeat reported.

        now_s: attentive time.
        """
        assert self.member.instance_id == instance_id, f"{self.member.instance_id} is filed as {instance_id}"
        assert self.heard_s <= now_s, f"{instance_id} was heard in the future"
        assert min(self.lendable, self.held) >= 0, f"{instance_id}: a count below 0"
        self.promises.validate()
        assert min(self.held_for.values(), default=0) >= 0, f"{instance_id}: less than nothing is held"
        assert self.held <= self.lendable // 2, f"{instance_id}: more is held back than half of what it lends"
        assert self.state != "dead" or self.is_empty, f"{instance_id} is dead and holds something"
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
    """All instances by id, those that can be recommended by what they have, and who owes whom. Whoever changes an entry
    files it."""

    def __init__(self, least_swap_blocks: int = 1, *, has_balance: bool = False) -> None:
        """least_swap_blocks: see DebtGraph. has_balance: whether `balance` is kept, which a policy that plans nothing
        does not need."""
        self.entries: dict[str, Entry] = {}
        self.debt_graph = DebtGraph(least_swap_blocks)
        self.available = Availability(self._view, self._views, self._lent)
        self.balance = BalanceIndex(self._view, self.debt_graph.creditors_of)
        self._has_balance = has_balance

    def file(self, entry: Entry) -> None:
        """An entry has changed. O(log n)."""
        self.available.put(entry.member.instance_id, entry.standing())
        if self._has_balance:
            self.balance.put(entry.member.instance_id, place_of(entry.view()))

    def add(self, entry: Entry) -> None:
        """An instance is new, or in a new incarnation."""
        self.entries[entry.member.instance_id] = entry
        self.debt_graph.update(entry.member.instance_id, ())
        self.file(entry)

    def remove(self, instance_id: str) -> None:
        """It is not known any more."""
        del self.entries[instance_id]
        self.debt_graph.update(instance_id, ())
        self.debt_graph.leave_out(instance_id, is_left_out=False)
        self.available.remove(instance_id)
        self.balance.put(instance_id, NOWHERE)

    def apply(self, heartbeat: Heartbeat) -> bool:
        """Take a heartbeat in; false if it builds on one that is not here: its numbers count, but where requests lie is
        not known until a full one says so.

        One older than what is known changes nothing and counts as taken. The entry is to be filed afterwards.
        """
        entry = self.entries[heartbeat.instance_id]
        before = entry.heartbeat
        if before is not None and heartbeat.seq <= before.seq:
            return True
        is_whole = entry.place(heartbeat)
        if before is None or heartbeat.debtors != before.debtors:
            self.debt_graph.update(heartbeat.instance_id, heartbeat.debtors)
        entry.heartbeat = heartbeat
        entry.lendable = min(heartbeat.lendable_blocks, entry.member.total_blocks)
        if entry.promises.num_requests:
            entry.promises.heartbeat(heartbeat.arrived)
        entry.start_anew()
        return is_whole

    def forget(self, instance_id: str) -> None:
        """It is dead: it holds and lends nothing. Should it come back, it must send a full heartbeat."""
        entry = self.entries[instance_id]
        entry.heartbeat, entry.placement, entry.placed_seq = None, {}, 0
        self.debt_graph.update(instance_id, ())
        entry.lendable = 0
        entry.promises.clear()
        entry.start_anew()

    def send(self, instance_id: str, request: WaitingRequest, num_blocks: int, origin_id: str) -> None:
        """A request of so many blocks was sent there for the memory that it lends: it is promised that. origin_id: the
        instance that it waited at, and that told of it."""
        entry = self.entries[instance_id]
        self.refused(instance_id, max(0, entry.lendable - num_blocks))
        num_tokens = request.num_tokens
        prompt_tokens = min(request.prompt_tokens, num_tokens)
        self.promise(instance_id, request.req_id, num_blocks, prompt_tokens)
        origin = self.entries.get(origin_id)
        if origin is not None:
            origin.sent_on_prompts += prompt_tokens
        if origin is not None and origin.heartbeat is not None and num_tokens in origin.heartbeat.waiting_tokens:
            origin.sent_on.append(num_tokens)
            del origin.sent_on[:-MAX_WAITING_SIZES]
            self.file(origin)

    def promise(self, instance_id: str, request_id: str, num_blocks: int, prompt_tokens: int = 0) -> None:
        """A request of so many blocks, and with such a prompt, is on its way there."""
        entry = self.entries[instance_id]
        entry.promises.add(request_id, num_blocks, prompt_tokens)
        self.file(entry)

    def hold(self, instance_id: str, num_blocks: int, debtor_id: str) -> int:
        """A debtor was recommended to borrow so much there: until the next heartbeat it comes later for others. At most
        half of what it lends is held back, so that nobody can hide it. Returns how much of it it could lend."""
        entry = self.entries[instance_id]
        lends = min(num_blocks, entry.lendable - entry.held)
        entry.held_for[debtor_id] = entry.held_for.get(debtor_id, 0) + lends
        entry.held = min(entry.held + lends, entry.lendable // 2)
        self.file(entry)
        return lends

    def refused(self, instance_id: str, free_blocks: int) -> None:
        """A debtor reports how much it was refused with: newer than the last heartbeat, but another's word, so it only
        lowers what can be lent, until the next heartbeat."""
        entry = self.entries.get(instance_id)
        if entry is not None:
            entry.lendable = min(free_blocks, entry.lendable)
            entry.held = min(entry.held, entry.lendable // 2)
            self.file(entry)

    def debts(self) -> dict[tuple[str, str], int]:
        """(debtor, creditor) -> blocks, as creditors report them."""
        return {
            (debtor.instance_id, creditor_id): debtor.num_blocks
            for creditor_id, entry in self.entries.items()
            if entry.heartbeat is not None
            for debtor in entry.heartbeat.debtors
            if debtor.num_blocks
        }

    def placement(self) -> dict[str, dict[str, int]]:
        """request -> instance -> blocks: the request placement map."""
        placed: dict[str, dict[str, int]] = {}
        for instance_id, entry in self.entries.items():
            for (req_id, _), item in entry.placement.items():
                held = placed.setdefault(req_id, {})
                held[instance_id] = held.get(instance_id, 0) + item.num_blocks
        return placed

    def validate(self, now_s: float) -> None:
        """Every entry, as of `now_s` of attentive time."""
        for instance_id, entry in self.entries.items():
            entry.validate(instance_id, now_s)
        self.available.validate()
        self.debt_graph.validate()
        self.balance.validate(self._views() if self._has_balance else iter(()))
        owed = {edge: n for edge, n in self.debts().items() if edge[0] != edge[1]}
        assert self.debt_graph.debts() == owed, "the graph has other debts than the ledger"

    def _view(self, instance_id: str) -> InstanceView | None:
        entry = self.entries.get(instance_id)
        return None if entry is None else entry.view()

    def _lent(self, creditor_id: str, debtor_id: str) -> int:
        entry = self.entries.get(creditor_id)
        return 0 if entry is None else entry.lent_to(debtor_id)

    def _views(self) -> Iterator[InstanceView]:
        return (entry.view() for entry in self.entries.values())
