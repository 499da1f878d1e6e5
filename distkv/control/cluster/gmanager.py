"""The gManager: membership, and answers to who asks. Its state is soft; it owns no memory. A policy decides where
requests go, who is recommended to debtors, and what is planned.

gm = GManager(settings)
commands = gm.handle(event, now)
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from distkv import events
from distkv.config import MembershipSettings
from distkv.control.cluster.ledger import Entry, Ledger
from distkv.control.cluster.policy.interface import InstanceView
from distkv.control.cluster.policy.registry import policy_named
from distkv.control.commands import Answer, Command, GManagerRequested, Publish, Tick
from distkv.types import InstanceState
from distkv.wire.messages import to_gmanager as tg
from distkv.wire.messages.common import Member
from distkv.wire.messages.envelope import ToGManager
from distkv.wire.messages.to_client import Located
from distkv.wire.messages.to_rmanager import Candidate, Creditors, HeartbeatAck, JoinRefused, Members

FORGET_DEAD_S = 300.0
NAMED_IN_A_REASON = 8


class GManager:
    """State machine of the gManager."""

    def __init__(self, settings: MembershipSettings, policy: str = "contract") -> None:
        """policy: name of one in `policy/registry.py`. Raises ConfigError for an unknown one."""
        self._settings = settings
        self._policy = policy_named(policy)
        self.ledger = Ledger()
        self.version = 0
        self._states: dict[str, InstanceState] = {}  # as of the last broadcast
        self._members_changed = False
        self._next_plan = 0.0
        self._commands: list[Command] = []

    def handle(self, event: GManagerRequested | Tick, now: float) -> list[Command]:
        """Take one event at time `now` (s, monotonic); returns what to do, in order."""
        if isinstance(event, GManagerRequested):
            self._requested(event.route, event.message, now)
        self._update_states(now)
        if now >= self._next_plan:
            self._next_plan = now + self._settings.heartbeat_s
            self._plan(now)
        issued, self._commands = self._commands, []
        return issued

    def members(self, now: float) -> Members:
        """The member list as of now."""
        return Members(version=self.version, members=tuple(self._present(i, now) for i in sorted(self.ledger.entries)))

    def _requested(self, route: bytes, body: ToGManager, now: float) -> None:
        match body:
            case tg.Join():
                self._join(body, route, now)
            case tg.Leave():
                self._leave(body, route)
            case tg.Heartbeat():
                self._heartbeat(body, route, now)
            case tg.BorrowQuery():
                self._recommend(body, route, now)
            case tg.MembersQuery():
                self._commands.append(Answer(route, self.members(now)))
            case tg.Locate():
                self._dispatch(body, route, now)
            case _:
                assert_never(body)

    # --- membership

    def _join(self, join: tg.Join, route: bytes, now: float) -> None:
        member = join.member
        entry = self.ledger.entries.get(member.instance_id)
        is_known = entry is not None and entry.member.incarnation == member.incarnation
        if entry is not None and is_known and not self._is_own(entry, route, join):
            return
        refusal = ""
        differing = self._differing(join, now)
        if not member.instance_id.isprintable():
            refusal = f"an instance's name has printable characters only, got {member.instance_id!a}"
        elif member.state in ("unreachable", "dead"):
            refusal = f"{member.instance_id} says that it is {member.state}, which only others can find"
        elif member.state != "starting" and not join.compat:
            refusal = f"{member.instance_id} is {member.state} and does not say what it serves"
        elif (taken_by := self._at_address(join, now)) is not None:
            refusal = f"{member.address} is the address of {taken_by}, which lives"
        elif differing:
            refusal = (
                f"instances {_some(differing)} serve another model, dtype or block layout than "
                f"{member.instance_id} ({join.compat}); one cluster serves one"
            )
        elif entry is not None and member.incarnation < entry.member.incarnation:
            refusal = f"a newer process serves as {member.instance_id} already (pid {entry.member.pid})"
        elif entry is not None and route != entry.route and self._alive(entry, now):
            if entry.challenge is None or entry.challenge[0] != route:
                entry.challenge = route, now
            if entry.last_heard <= entry.challenge[1]:
                return  # it is heard soon, or silent for long enough to be replaced when this one joins again
            refusal = f"another process serves as {member.instance_id} (pid {entry.member.pid}), and it lives"
        elif entry is not None and not is_known and self._state(member.instance_id, now) != "dead":
            self._publish(events.Replaced(instance=member.instance_id, old_pid=entry.member.pid, new_pid=member.pid))
        if refusal:
            self._commands.append(Answer(route, JoinRefused(reason=refusal)))
            self._publish(events.JoinRefused(instance=member.instance_id, reason=refusal))
            if entry is not None and is_known and not entry.compat:
                del self.ledger.entries[member.instance_id]  # known only as one that was starting
            return
        self._members_changed = self._members_changed or entry is None or entry.member != member
        if entry is None or not is_known:
            entry = Entry(member, now, route)
            self.ledger.entries[member.instance_id] = entry
            self._publish(events.Joined(instance=member.instance_id, pid=member.pid, blocks=member.total_blocks))
        entry.member, entry.last_heard, entry.compat = member, now, join.compat
        if entry.heartbeat is None:
            entry.lendable = member.lendable_blocks
        if not self._members_changed:
            self._commands.append(Answer(route, self.members(now)))

    def _leave(self, leave: tg.Leave, route: bytes) -> None:
        entry = self.ledger.entries.get(leave.instance_id)
        if entry is None or entry.member.incarnation != leave.incarnation:
            return
        if self._is_own(entry, route, leave):
            entry.member = msgspec.structs.replace(entry.member, state="dead")
            self._publish(events.Left(instance=leave.instance_id))

    def _heartbeat(self, heartbeat: tg.Heartbeat, route: bytes, now: float) -> None:
        entry = self.ledger.entries.get(heartbeat.instance_id)
        if entry is None or heartbeat.incarnation > entry.member.incarnation:
            self._commands.append(Answer(route, HeartbeatAck(seq=heartbeat.seq, want_join=True)))
        elif heartbeat.incarnation == entry.member.incarnation and self._is_own(entry, route, heartbeat):
            taken = self.ledger.apply(heartbeat, now)
            self._commands.append(Answer(route, HeartbeatAck(seq=heartbeat.seq, want_full=not taken)))

    def _update_states(self, now: float) -> None:
        """Send the member list to all when an instance is new or changes; what a dead one held is gone with it."""
        for instance_id, entry in list(self.ledger.entries.items()):
            if now - entry.last_heard >= FORGET_DEAD_S:
                del self.ledger.entries[instance_id]
        states = {i: self._state(i, now) for i in self.ledger.entries}
        for instance_id, state in states.items():
            if state == "dead":
                self.ledger.forget(instance_id)
            if self._states.get(instance_id) != state:
                self._publish(events.InstanceStateChanged(instance=instance_id, state=state))
        if states != self._states or self._members_changed:
            self._states, self._members_changed = states, False
            self._broadcast(now)

    def _broadcast(self, now: float) -> None:
        self.version += 1
        members = self.members(now)
        for instance_id, entry in self.ledger.entries.items():
            if self._state(instance_id, now) != "dead":
                self._commands.append(Answer(entry.route, members))

    # --- what the policy decides

    def _dispatch(self, locate: tg.Locate, route: bytes, now: float) -> None:
        chosen = self._policy.dispatch(locate, self._views(now))
        if chosen is None:
            states = ", ".join(f"{i} {self._state(i, now)}" for i in sorted(self.ledger.entries)) or "none has joined"
            answer = Located(request_id=locate.request_id, reason=f"no instance is ready ({states})")
        else:
            address = self.ledger.entries[chosen.instance_id].member.address
            answer = Located(request_id=locate.request_id, instance_id=chosen.instance_id, address=address)
            self.ledger.promise(chosen.instance_id, chosen.blocks_for(locate.num_tokens))
        self._commands.append(Answer(route, answer))

    def _recommend(self, query: tg.BorrowQuery, route: bytes, now: float) -> None:
        debtor = self.ledger.entries.get(query.instance_id)
        if debtor is not None and query.refusals and self._is_own(debtor, route, query):
            for refusal in query.refusals:
                self.ledger.refused(refusal.instance_id, refusal.free_blocks)
        creditors = self._policy.recommend(query, self._views(now))
        candidates = tuple(Candidate(view.instance_id, view.lendable_blocks) for view in creditors)
        self._commands.append(Answer(route, Creditors(borrow_id=query.borrow_id, candidates=candidates)))

    def _plan(self, now: float) -> None:
        for move in self._policy.plan(self._views(now)):
            self._publish(
                events.MovePlanned(
                    request_id=move.request_id,
                    debtor=move.debtor_id,
                    creditor=move.creditor_id,
                    blocks=move.num_blocks,
                )
            )

    def _views(self, now: float) -> list[InstanceView]:
        return [entry.view(self._state(instance_id, now)) for instance_id, entry in self.ledger.entries.items()]

    # --- helpers

    def _is_own(self, entry: Entry, route: bytes, message: tg.Join | tg.Leave | tg.Heartbeat | tg.BorrowQuery) -> bool:
        """Whether a message in an instance's name comes by the connection that this incarnation joined by; it keeps
        its route for as long as it runs. An authenticated identity will stand here."""
        if route == entry.route:
            return True
        name = type(message).__name__
        self._publish(events.ClaimRefused(instance=entry.member.instance_id, message=name))
        return False

    def _present(self, instance_id: str, now: float) -> Member:
        entry = self.ledger.entries[instance_id]
        free = entry.member.free_blocks if entry.heartbeat is None else entry.heartbeat.free_blocks
        return msgspec.structs.replace(entry.member, state=self._state(instance_id, now), free_blocks=free)

    def _state(self, instance_id: str, now: float) -> InstanceState:
        return self.ledger.state(instance_id, now, self._settings.heartbeat_s, self._settings.dead_after_s)

    def _alive(self, entry: Entry, now: float) -> bool:
        return self._state(entry.member.instance_id, now) not in ("dead", "unreachable")

    def _differing(self, join: tg.Join, now: float) -> list[str]:
        """Live instances whose rBlocks this one could not read; one that starts does not know what it is yet."""
        return sorted(
            instance_id
            for instance_id, entry in self.ledger.entries.items()
            if join.compat
            and entry.compat not in ("", join.compat)
            and instance_id != join.member.instance_id
            and self._state(instance_id, now) != "dead"
        )

    def _at_address(self, join: tg.Join, now: float) -> str | None:
        """The live instance of another name that serves at the address this one gives as its own."""
        for instance_id, entry in self.ledger.entries.items():
            is_other = instance_id != join.member.instance_id and entry.member.address == join.member.address
            if is_other and self._alive(entry, now):
                return instance_id
        return None

    def _publish(self, event: events.ClusterEvent) -> None:
        self._commands.append(Publish(event))

    # --- checks

    def validate(self, now: float) -> None:
        """Every invariant, `now` being the time of the last event."""
        self.ledger.validate(now)
        assert not self._members_changed, "members changed and no list was sent"
        assert self._states.keys() == self.ledger.entries.keys(), "states of others than those in the ledger"
        assert self.version > 0 or not self._states, "a member list without a version"
        for instance_id, state in self._states.items():
            assert state == self._state(instance_id, now), f"{instance_id} is not {state} any more"
            entry = self.ledger.entries[instance_id]
            assert state != "dead" or entry.is_empty, f"{instance_id} is dead and holds something"


def _some(names: list[str]) -> str:
    """The first of the names, and how many there are besides: a reason has a limit, a cluster has none."""
    more = len(names) - NAMED_IN_A_REASON
    return ", ".join(names[:NAMED_IN_A_REASON]) + (f" and {more} more" if more > 0 else "")
