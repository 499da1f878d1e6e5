"""The gManager: membership, and answers to who asks. Its state is soft; it owns no memory. A policy decides where
requests go, who is recommended to debtors, and what is planned.

gm = GManager(settings)
commands = gm.handle(event, now)
"""

from __future__ import annotations

import math
from random import Random
from typing import assert_never

import msgspec

from distkv import events
from distkv.config import AdviceSettings, MembershipSettings
from distkv.control.cluster.advice import Advice
from distkv.control.cluster.debts.dgfm import Dgfm
from distkv.control.cluster.decisions import Decisions
from distkv.control.cluster.dispatch.registry import dispatcher_named
from distkv.control.cluster.joining import LiveInstances, why_turned_out
from distkv.control.cluster.ledger import Entry, Ledger
from distkv.control.cluster.member_feed import MemberFeed
from distkv.control.cluster.overview import Overview
from distkv.control.cluster.policy.registry import make_policy
from distkv.control.cluster.silence import (
    AttentiveTime,
    Dead,
    Deadlines,
    dead_after_s,
    period_of,
    unreachable_after_s,
)
from distkv.control.commands import Answer, GManagerCommand, GManagerRequested, Publish, Tick
from distkv.control.query_limit import QueryLimit
from distkv.log.line_limit import LineLimit
from distkv.types import InstanceState
from distkv.wire.messages import to_gmanager as tg
from distkv.wire.messages.common import Member
from distkv.wire.messages.envelope import ToGManager
from distkv.wire.messages.to_client import ClusterState, Dispatched
from distkv.wire.messages.to_rmanager import HeartbeatAck, JoinRefused

FORGET_DEAD_S = 300.0
MOST_JUDGED = 64
"""Instances whose silence is judged in one event, so that a host that dies with thousands holds nobody up."""


class GManager:
    """State machine of the gManager. Every event but `validate` costs O(log n) in instances; a change of the member
    list goes to all of them, and `ExplainQuery` looks at all, so often at most as `QueryLimit` lets it."""

    def __init__(
        self, settings: MembershipSettings, policy: AdviceSettings | None = None, incarnation: int = 1
    ) -> None:
        """policy: what it decides by. incarnation: > 0, of this gManager; member lists of another are not
        comparable."""
        self._settings = settings
        advice = policy or AdviceSettings()
        self._policy_name = advice.policy
        decided_by = make_policy(advice)
        self._shares_memory = decided_by.shares_memory
        self.ledger = Ledger(max(1, advice.dgfm_min_blocks), has_balance=decided_by.plans)
        dispatcher = dispatcher_named(advice.dispatch, Random(incarnation), shares_memory=self._shares_memory)
        self._advice = Advice(self.ledger, decided_by, dispatcher, incarnation)
        self._dgfm = Dgfm(self.ledger, incarnation, advice.dgfm_min_blocks, settings.heartbeat_s)
        self._feed = MemberFeed(incarnation, self._policy_name, settings.expected_instances)
        self._live = LiveInstances()
        self._overview = Overview(self._policy_name)
        self._decisions = Decisions()
        self._time = AttentiveTime()
        self._deadlines = Deadlines()
        self._dead = Dead()
        self._refusals, self._claims = LineLimit(), LineLimit()
        self._queries = QueryLimit()
        self._swaps = decided_by.swaps and advice.dgfm_min_blocks > 0
        self._next_plan = 0.0 if decided_by.plans else math.inf
        self._commands: list[GManagerCommand] = []

    @property
    def version(self) -> int:
        """Of the member list."""
        return self._feed.log.version

    def handle(self, event: GManagerRequested | Tick, now: float) -> list[GManagerCommand]:
        """Take one event at time `now` (s, monotonic); returns what to do, in order.

        A `Tick` says that the inbox was found empty, or that something of everybody was read who has something there:
        who is silent then has really said nothing.
        """
        self._time.advance(now)
        if isinstance(event, GManagerRequested):
            self._requested(event.route, event.message, now)
        else:
            self._tick(now)
        if not self._feed.is_quiet:
            self._commands += self._feed.flush(now, self._subscribers)
        if self._dead.are_too_many:
            for instance_id in self._dead.oldest(MOST_JUDGED, self._feed.has_told):
                self._remove(instance_id)
        issued, self._commands = self._commands, []
        return issued

    def next_deadline(self) -> float:
        """When the next `Tick` is needed, on the clock of `now`; `math.inf` if never."""
        silence_s = self._deadlines.next_s()
        silence = math.inf if silence_s == math.inf else self._time.when(silence_s)
        swaps = self._dgfm.next_deadline() if self._swaps else math.inf
        return min(silence, self._feed.next_deadline(), self._next_plan, swaps)

    def members(self) -> list[Member]:
        """The member list, by name."""
        return sorted(self._feed.log.all(), key=lambda member: member.instance_id)

    def _tick(self, now: float) -> None:
        self._judge()
        if now >= self._next_plan:  # by all heartbeats that have come
            self._next_plan = now + self._settings.heartbeat_s
            self._decided(self._advice.planned(now), now)
        if self._swaps:
            self._dgfm.advance(now)
            self._decided(self._dgfm.take_commands(), now)

    def _decided(self, commands: list[GManagerCommand], now: float) -> None:
        """What was planned or swapped goes out, and is remembered."""
        self._commands += commands
        for command in commands:
            if isinstance(command, Publish):
                self._decisions.note(command.event, now)

    def _requested(self, route: bytes, body: ToGManager, now: float) -> None:
        match body:
            case tg.Heartbeat():
                self._heartbeat(body, route, now)
            case tg.BorrowQuery():
                self._recommend(body, route, now)
            case tg.RedispatchQuery():
                self._redispatch(body, route, now)
            case tg.Locate():
                self._commands.append(Answer(route, self._advice.dispatch(body, self._overview.num_ready, now)))
            case tg.Join():
                self._join(body, route, now)
            case tg.Leave():
                self._leave(body, route, now)
            case tg.MembersQuery():
                self._feed.ask(route, body)
            case tg.Frozen() | tg.Swapped():
                self._on_swap(body, route, now)
            case tg.ExplainQuery():
                wait_s = self._queries.wait_s(route, now)
                refused = Dispatched(query=body.request_id, retry_after_s=wait_s)
                self._commands.append(Answer(route, refused if wait_s else self._advice.dispatched(body, now)))
            case tg.ClusterQuery():
                wait_s = self._queries.wait_s(route, now)
                state = ClusterState(retry_after_s=wait_s) if wait_s else self._overview.state(self._decisions, now)
                self._commands.append(Answer(route, state))
            case _:
                assert_never(body)

    # --- membership

    def _join(self, join: tg.Join, route: bytes, now: float) -> None:
        member = join.member
        entry = self.ledger.entries.get(member.instance_id)
        is_known = entry is not None and entry.member.incarnation == member.incarnation
        if entry is not None and is_known and not self._is_own(entry, route, join, now):
            return
        for stranger in self._live.strangers(join, self._time.now_s):
            self._refuse(stranger.member, stranger.route, why_turned_out(join, stranger), False, now)
            self._has_left(stranger)
        refusal: str | None = self._live.refusal(join)
        is_taken = False
        if not refusal and entry is not None and not is_known and entry.lives:
            refusal, is_taken = entry.keeps_name_from(member, route, self._time.now_s), True
        if refusal is None:
            return  # it is heard soon, or silent for long enough to be replaced when this one joins again
        if refusal:
            self._refuse(member, route, refusal, is_taken, now)
        else:
            self._let_in(join, route, entry)

    def _let_in(self, join: tg.Join, route: bytes, before: Entry | None) -> None:
        """An instance is in the cluster, perhaps as another incarnation than `before`, or again."""
        member, entry = join.member, before
        is_new = entry is None or entry.member.incarnation != member.incarnation
        if entry is not None and not is_new:
            as_before = msgspec.structs.replace(member, free_blocks=entry.member.free_blocks)
            is_changed = (as_before, join.compat) != (entry.member, entry.compat)
        else:
            if entry is not None and entry.state != "dead":
                old_pid = entry.member.pid
                self._publish(events.Replaced(instance=member.instance_id, old_pid=old_pid, new_pid=member.pid))
            entry, is_changed = Entry(member, self._time.now_s, route), True
            self._publish(events.Joined(instance=member.instance_id, pid=member.pid, blocks=member.total_blocks))
        entry.member, entry.heard_s, entry.compat, entry.serves = member, self._time.now_s, join.compat, join.serves
        entry.belongs = join.belongs
        entry.predict_by(join.profile)
        period_s = period_of(member.heartbeat_s, self._settings.heartbeat_s)
        entry.dead_after_s = dead_after_s(period_s, self._settings.dead_after_s)
        entry.unreachable_after_s = min(unreachable_after_s(period_s), entry.dead_after_s)
        self.ledger.debt_graph.leave_out(member.instance_id, is_left_out=not join.swaps)
        if entry.heartbeat is None:
            entry.lendable = min(member.lendable_blocks, member.total_blocks)
            entry.held = min(entry.held, entry.lendable // 2)
        if is_new:
            self.ledger.add(entry)
        self._settle(entry, entry.reported_state, is_new=is_new, is_changed=is_changed)
        self._feed.greet(route, member.instance_id, is_new=is_new)

    def _refuse(self, member: Member, route: bytes, reason: str, is_taken: bool, now: float) -> None:
        instance_id = member.instance_id
        self._commands.append(Answer(route, JoinRefused(reason=reason, is_taken=is_taken)))
        if (left_out := self._refusals.admit(now)) is not None:
            self._publish(events.JoinRefused(instance=instance_id, reason=reason, left_out=left_out))
        entry = self.ledger.entries.get(instance_id)
        if entry is not None and entry.member.incarnation == member.incarnation and not entry.compat:
            self._remove(instance_id)  # known only as one that was starting

    def _leave(self, leave: tg.Leave, route: bytes, now: float) -> None:
        entry = self.ledger.entries.get(leave.instance_id)
        if entry is None or entry.member.incarnation != leave.incarnation:
            return
        if self._is_own(entry, route, leave, now):
            self._publish(events.Left(instance=leave.instance_id))
            self._has_left(entry)

    def _has_left(self, entry: Entry) -> None:
        entry.member = msgspec.structs.replace(entry.member, state="dead", left=True)
        self._settle(entry, "dead")

    def _heartbeat(self, heartbeat: tg.Heartbeat, route: bytes, now: float) -> None:
        entry = self.ledger.entries.get(heartbeat.instance_id)
        want_full = False
        want_join = entry is None or entry.member.incarnation != heartbeat.incarnation
        if entry is not None and not want_join:
            if not self._is_own(entry, route, heartbeat, now):
                return
            want_full = self._heard(entry, heartbeat)
        ack = HeartbeatAck(
            seq=heartbeat.seq,
            want_full=want_full,
            want_join=want_join,
            incarnation=self._feed.incarnation,
            version=self._feed.sent_version,
            policy=self._policy_name,
            room_tokens=self._advice.room_tokens(heartbeat.instance_id) if heartbeat.waiting else 0,
        )
        self._commands.append(Answer(route, ack))

    def _heard(self, entry: Entry, heartbeat: tg.Heartbeat) -> bool:
        """It lives, and this is how it is; returns whether a full heartbeat is needed."""
        if entry.member.state == "dead":
            return False  # sent before it left
        entry.heard_s = self._time.now_s
        before = entry.heartbeat
        is_taken = self.ledger.apply(heartbeat)
        if (state := entry.reported_state) != entry.state:
            self._settle(entry, state)
        else:
            self.ledger.file(entry)
        if before is None:
            self._watch(entry)
        if before is None or before.debtors != heartbeat.debtors:
            self._overview.file_debts(entry)
        return not is_taken

    def _judge(self) -> None:
        """Look at those whose time has come; what was heard of them meanwhile puts it off."""
        for _ in range(MOST_JUDGED):
            instance_id = self._deadlines.pop(self._time.now_s)
            if instance_id is None:
                return
            entry = self.ledger.entries[instance_id]
            if entry.state == "dead":
                self._remove(instance_id)
            elif self._time.is_over(due_s := self._due_s(entry)):
                is_dead = self._time.is_over(self._heard_s(entry) + entry.dead_after_s)
                self._settle(entry, "dead" if is_dead else "unreachable")
                if not is_dead:
                    self._watch(entry)
            else:
                self._deadlines.put(instance_id, due_s)

    def _settle(self, entry: Entry, state: InstanceState, *, is_new: bool = False, is_changed: bool = False) -> None:
        """An entry is in this state from now on, perhaps another than before: file it, and let others know."""
        instance_id, before = entry.member.instance_id, entry.state
        entry.state = state
        if state != before or is_new:
            self._dead.put(instance_id, is_dead=state == "dead")
            if state == "dead":
                self.ledger.forget(instance_id)
            if is_new or state == "dead" or before in ("dead", "unreachable"):
                self._watch(entry)
            if not entry.member.left:  # `Left` says that
                self._publish(events.InstanceStateChanged(instance=instance_id, state=state))
        if state != before or is_changed:
            self._live.file(entry)
            self._feed.log.put(entry.as_member(lends=self._shares_memory))
        self.ledger.file(entry)
        if state != before or is_new:
            self._overview.file(entry)
        else:
            self._overview.file_debts(entry)

    def _watch(self, entry: Entry) -> None:
        """Look at it when it may have become silent, or is to be forgotten."""
        due_s = self._time.now_s + FORGET_DEAD_S if entry.state == "dead" else self._due_s(entry)
        self._deadlines.put(entry.member.instance_id, due_s)

    def _due_s(self, entry: Entry) -> float:
        """When one that lives is silent for long enough to be unreachable, or to be dead if it cannot be that (any
        more): one that loads may be too busy to beat."""
        is_first = entry.state != "unreachable" and entry.heartbeat is not None
        return self._heard_s(entry) + (entry.unreachable_after_s if is_first else entry.dead_after_s)

    def _heard_s(self, entry: Entry) -> float:
        return max(entry.heard_s, self._time.since_s)

    def _remove(self, instance_id: str) -> None:
        self._dead.put(instance_id, is_dead=False)
        self.ledger.remove(instance_id)
        self._live.drop(instance_id)
        self._overview.drop(instance_id)
        self._deadlines.drop(instance_id)
        self._feed.log.remove(instance_id)

    def _subscribers(self) -> tuple[bytes, ...]:
        return tuple(entry.route for entry in self.ledger.entries.values() if entry.state != "dead")

    # --- what debtors ask

    def _recommend(self, query: tg.BorrowQuery, route: bytes, now: float) -> None:
        debtor = self.ledger.entries.get(query.instance_id)
        is_own = debtor is not None and route == debtor.route
        if debtor is not None and query.refusals and self._is_own(debtor, route, query, now):
            for refusal in query.refusals:
                self.ledger.refused(refusal.instance_id, refusal.free_blocks)
        self._commands.append(Answer(route, self._advice.recommend(query, is_own=is_own)))

    def _redispatch(self, query: tg.RedispatchQuery, route: bytes, now: float) -> None:
        """Only for an instance that is known: what is promised elsewhere comes from there."""
        entry = self.ledger.entries.get(query.instance_id)
        if entry is not None and self._is_own(entry, route, query, now):
            self._commands.append(Answer(route, self._advice.redispatch(query)))

    def _on_swap(self, answer: tg.Frozen | tg.Swapped, route: bytes, now: float) -> None:
        """A member of a run says how far it is."""
        member = self.ledger.entries.get(answer.instance_id)
        if member is None or not self._is_own(member, route, answer, now):
            return
        if isinstance(answer, tg.Frozen):
            self._dgfm.on_frozen(answer, now)
        else:
            self._dgfm.on_swapped(answer, now)
        self._decided(self._dgfm.take_commands(), now)

    # --- helpers

    def _is_own(
        self,
        entry: Entry,
        route: bytes,
        message: tg.Join | tg.Leave | tg.Heartbeat | tg.BorrowQuery | tg.RedispatchQuery | tg.Frozen | tg.Swapped,
        now: float,
    ) -> bool:
        """Whether a message in an instance's name comes by the connection that this incarnation joined by; it keeps
        its route for as long as it runs. Several may share one. An authenticated identity will stand here."""
        if route == entry.route:
            return True
        if (left_out := self._claims.admit(now)) is not None:
            name = type(message).__name__
            self._publish(events.ClaimRefused(instance=entry.member.instance_id, message=name, left_out=left_out))
        return False

    def _publish(self, event: events.ClusterEvent) -> None:
        self._commands.append(Publish(event))

    # --- checks

    def validate(self) -> None:
        """Every invariant."""
        self.ledger.validate(self._time.now_s)
        self._feed.validate()
        self._dgfm.validate()
        entries = self.ledger.entries
        self._live.validate(entries)
        listed = {member.instance_id: member for member in self._feed.log.all()}
        assert listed.keys() == entries.keys(), "members other than those in the ledger"
        assert self._deadlines.names() == entries.keys(), "deadlines of others than those in the ledger"
        assert self._dead.names() == {name for name, entry in entries.items() if entry.state == "dead"}
        for instance_id, entry in entries.items():
            told = listed[instance_id]
            assert (told.incarnation, told.state) == (entry.member.incarnation, entry.state), (
                f"{instance_id} is not {told.state} any more"
            )
        self._overview.validate(entries, self.ledger.debts())
