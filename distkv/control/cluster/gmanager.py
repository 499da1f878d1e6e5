"""The gManager's decisions: membership, dispatch, creditor recommendations. Its state is soft; it owns no memory.

gm = GManager(settings)
commands = gm.handle(event, now)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import msgspec

from distkv import events
from distkv.control.cluster.ledger import Entry, Ledger
from distkv.control.commands import Answer, Command, GManagerRequested, Publish, Tick
from distkv.types import InstanceState
from distkv.wire.messages import to_gmanager as tg
from distkv.wire.messages.common import Member
from distkv.wire.messages.envelope import ToGManager
from distkv.wire.messages.to_client import Located
from distkv.wire.messages.to_rmanager import Candidate, Creditors, HeartbeatAck, JoinRefused, Members

MAX_CANDIDATES = 3
FORGET_DEAD_S = 300.0


@dataclass(frozen=True, slots=True)
class GManagerSettings:
    """heartbeat_s: the period instances keep. dead_after_s: silence after which an instance counts as dead."""

    heartbeat_s: float = 0.5
    dead_after_s: float = 4.0


class GManager:
    """State machine of the gManager."""

    def __init__(self, settings: GManagerSettings) -> None:
        self._settings = settings
        self.ledger = Ledger()
        self._version = 0
        self._states: dict[str, InstanceState] = {}
        self._news = False
        self._commands: list[Command] = []

    def handle(self, event: GManagerRequested | Tick, now: float) -> list[Command]:
        """Take one event at time `now` (s, monotonic); returns what to do, in order."""
        if isinstance(event, GManagerRequested):
            self._requested(event.route, event.message, now)
        self._watch(now)
        issued, self._commands = self._commands, []
        return issued

    def members(self, now: float) -> Members:
        """The member list as of now."""
        return Members(version=self._version, members=tuple(self._present(i, now) for i in sorted(self.ledger.entries)))

    def _requested(self, route: bytes, body: ToGManager, now: float) -> None:
        match body:
            case tg.Join():
                self._join(body, route, now)
            case tg.Leave():
                self._leave(body)
            case tg.Heartbeat():
                self._heartbeat(body, route, now)
            case tg.BorrowQuery():
                self._borrow_query(body, route, now)
            case tg.MembersQuery():
                self._commands.append(Answer(route, self.members(now)))
            case tg.Locate():
                self._locate(body, route, now)
            case _:
                assert_never(body)

    # --- membership

    def _join(self, join: tg.Join, route: bytes, now: float) -> None:
        member = join.member
        entry = self.ledger.entries.get(member.instance_id)
        refusal = ""
        differing = self._differing(join, now)
        if differing:
            refusal = (
                f"instances {', '.join(differing)} serve another model, dtype or block layout than "
                f"{member.instance_id} ({join.compat}); one cluster serves one"
            )
        elif entry is not None and member.incarnation < entry.member.incarnation:
            refusal = f"a newer process serves as {member.instance_id} already (pid {entry.member.pid})"
        elif entry is not None and member.incarnation > entry.member.incarnation and self._alive(entry, now):
            self._publish(events.Replaced(instance=member.instance_id, old_pid=entry.member.pid, new_pid=member.pid))
        if refusal:
            self._commands.append(Answer(route, JoinRefused(reason=refusal)))
            self._publish(events.JoinRefused(instance=member.instance_id, reason=refusal))
            if entry is not None and entry.member.incarnation == member.incarnation and not entry.compat:
                del self.ledger.entries[member.instance_id]  # known only as one that was starting
            return
        self._news = self._news or entry is None or entry.member != member
        if entry is None or entry.member.incarnation != member.incarnation:
            entry = Entry(member, now, route)
            self.ledger.entries[member.instance_id] = entry
            self._publish(events.Joined(instance=member.instance_id, pid=member.pid, blocks=member.total_blocks))
        entry.member, entry.route, entry.last_heard, entry.compat = member, route, now, join.compat
        if entry.heartbeat is None:
            entry.lendable = member.lendable_blocks
        if not self._news:
            self._commands.append(Answer(route, self.members(now)))

    def _leave(self, leave: tg.Leave) -> None:
        entry = self.ledger.entries.get(leave.instance_id)
        if entry is not None and entry.member.incarnation == leave.incarnation:
            entry.member = msgspec.structs.replace(entry.member, state="dead")
            self._publish(events.Left(instance=leave.instance_id))

    def _heartbeat(self, heartbeat: tg.Heartbeat, route: bytes, now: float) -> None:
        entry = self.ledger.entries.get(heartbeat.instance_id)
        if entry is None or heartbeat.incarnation > entry.member.incarnation:
            self._commands.append(Answer(route, HeartbeatAck(seq=heartbeat.seq, want_join=True)))
        elif heartbeat.incarnation == entry.member.incarnation:
            entry.route = route
            taken = self.ledger.apply(heartbeat, now)
            self._commands.append(Answer(route, HeartbeatAck(seq=heartbeat.seq, want_full=not taken)))

    def _watch(self, now: float) -> None:
        """Tell everyone when an instance is new or changes; what a dead one held is gone with it."""
        for instance_id, entry in list(self.ledger.entries.items()):
            if now - entry.last_heard >= FORGET_DEAD_S:
                del self.ledger.entries[instance_id]
        states = {i: self._state(i, now) for i in self.ledger.entries}
        if states != self._states or self._news:
            for instance_id, state in states.items():
                if self._states.get(instance_id) != state:
                    self._publish(events.InstanceStateChanged(instance=instance_id, state=state))
                    if state == "dead":
                        self.ledger.forget(instance_id)
            self._states, self._news = states, False
            self._broadcast(now)

    def _broadcast(self, now: float) -> None:
        self._version += 1
        members = self.members(now)
        for instance_id, entry in self.ledger.entries.items():
            if self._state(instance_id, now) != "dead":
                self._commands.append(Answer(entry.route, members))

    # --- recommendations

    def _borrow_query(self, query: tg.BorrowQuery, route: bytes, now: float) -> None:
        """Candidates by locality, then availability (000 §4.4)."""
        for refusal in query.refusals:
            self.ledger.refused(refusal.instance_id, refusal.free_blocks)
        debtor = self.ledger.entries.get(query.instance_id)
        host = "" if debtor is None or debtor.member.data is None else debtor.member.data.host_key
        skip = {query.instance_id, *query.exclude}
        able = [
            (instance_id, entry)
            for instance_id, entry in self.ledger.entries.items()
            if instance_id not in skip and entry.lendable > 0 and self._state(instance_id, now) == "ready"
        ]
        able.sort(key=lambda item: (not _is_near(item[1].member, host), -item[1].lendable, item[0]))
        chosen = tuple(Candidate(instance_id, entry.lendable) for instance_id, entry in able[:MAX_CANDIDATES])
        self._commands.append(Answer(route, Creditors(borrow_id=query.borrow_id, candidates=chosen)))

    def _locate(self, locate: tg.Locate, route: bytes, now: float) -> None:
        """Best first: nobody waits there; it fits locally, then the fewest requests; else the most free memory."""
        ready = [
            (instance_id, entry)
            for instance_id, entry in self.ledger.entries.items()
            if self._state(instance_id, now) == "ready" and instance_id not in locate.exclude
        ]
        if not ready:
            states = ", ".join(f"{i} {self._state(i, now)}" for i in sorted(self.ledger.entries)) or "none has joined"
            reason = f"no instance is ready ({states})"
            self._commands.append(Answer(route, Located(request_id=locate.request_id, reason=reason)))
            return
        needed = {i: -(-locate.num_tokens // max(1, entry.member.block_tokens)) for i, entry in ready}
        instance_id, entry = max(ready, key=lambda item: _fitness(item[1], needed[item[0]], item[0]))
        entry.promised_blocks += needed[instance_id]
        entry.promised_requests += 1
        self._commands.append(
            Answer(
                route,
                Located(request_id=locate.request_id, instance_id=instance_id, address=entry.member.address),
            )
        )

    # --- helpers

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

    def _publish(self, event: events.ClusterEvent) -> None:
        self._commands.append(Publish(event))


def _is_near(member: Member, host_key: str) -> bool:
    return bool(host_key) and member.data is not None and member.data.host_key == host_key


def _fitness(entry: Entry, needed: int, instance_id: str) -> tuple[bool, bool, int, int, list[int]]:
    """Sorts instances, the best last; equal ones by name."""
    fits = entry.free_blocks >= needed
    by_name = [-ord(char) for char in instance_id]
    return entry.waiting == 0, fits, -entry.load if fits else 0, entry.free_blocks, by_name
