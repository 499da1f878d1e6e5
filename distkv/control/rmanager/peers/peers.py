"""The member list as one rManager has it, and which peers it has reason to doubt.

A gManager's word loses nothing: it may be stalled, cut off, or one of two. A peer that it lists as unreachable, dead or
restarted is doubted. While this instance has borrowed there or lends to it, the peer counts as what it was, with its
tensor link, nothing more is borrowed, and it is knocked at: its answer decides, or that none comes. Where nothing is at
stake the list is believed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from distkv.control.commands import TellWorker
from distkv.control.rmanager.peers.absent import Absent
from distkv.control.rmanager.peers.doubts import Doubts
from distkv.control.rmanager.peers.member_table import GONE
from distkv.control.rmanager.state import RManagerState
from distkv.wire.messages.common import DataEndpoint, Member
from distkv.wire.messages.envelope import PeerAnswer
from distkv.wire.messages.member_versions import MemberCursor, MemberLog
from distkv.wire.messages.to_client import Located
from distkv.wire.messages.to_gmanager import MembersQuery
from distkv.wire.messages.to_rmanager import Members, Renewed
from distkv.wire.messages.to_worker import Peers

SUSPECT_S = 1.0
SILENT_S = 4.0
LISTED_DEAD_S = 2.0
"""How long a peer may stay unheard before it counts as lost: one whose connection broke, one that did not answer, and
one that a gManager lists as dead or restarted, or does not list."""
NEWLY_HEARD_S = 5.0
"""Another gManager, or a new process of the same, hears of all instances in this time; until then it knows only who
joined, and what it says of who is not there counts for nothing."""


@dataclass(frozen=True, slots=True)
class LostPeer:
    """A peer that is gone; `new_incarnation` is that of its successor if there is one already."""

    instance_id: str
    new_incarnation: int | None


class PeerBook:
    """Members other than this instance. A list that lacks somebody proves nothing: the gManager may have restarted. The
    peer itself is asked, and forgotten once it is lost.

    has_lent(instance_id): whether this instance owes it anything. own: this instance. cursor: how far the gManager's
    list was followed. Of peers whose listed state is not believed yet, `_listed` has the entry as listed. `_reached`:
    peers that the worker may open tensor links to, as it was told; `_changed`: those that may be others by now.
    `_postponed`: what a gManager that was not heard before said of peers that are ready here, until `_believed_from`.
    `_told`: peers that the gManager which is followed knew as they are known here; what it says of them later is newer.
    """

    def __init__(self, state: RManagerState, has_lent: Callable[[str], bool]) -> None:
        self._state = state
        self._has_lent = has_lent
        self.cursor = MemberCursor()
        self._log = MemberLog(max(1, state.settings.incarnation))
        self._listed: dict[str, Member] = {}
        self._reached: dict[str, Member] = {}
        self._changed: set[str] = set()
        self._source = 0
        self._postponed: dict[str, Member] = {}
        self._told: set[str] = set()
        self._believed_from = -math.inf
        self._absent = Absent()
        self._doubts = Doubts(state)
        self.own: Member | None = None

    # --- the list

    def take(self, message: Members, now: float) -> list[LostPeer]:
        """Follow the gManager's list by what changed in it; returns peers as `update` does."""
        if not self.cursor.take(message):
            return []
        if message.incarnation != self._source:
            self._believed_from = now + NEWLY_HEARD_S if self._source else now
            self._source = message.incarnation
            self._told.clear()
            self._absent.ask_from(self._believed_from)
        self._absent.named(member.instance_id for member in message.members)
        lost = self.update(message.members, now)
        if self._source:
            self._told.update(member.instance_id for member in message.members if self._is_known(member))
        named, table = self.cursor.take_whole(message), self._state.members
        if named is not None or table.listed_from < math.inf:
            table.listed_from = min(table.listed_from, now + message.settles_in_s)
        unnamed = () if named is None else sorted(self._state.members.keys() - named)
        for instance_id in (*message.gone, *unnamed):
            self._is_not_listed(instance_id)
        return lost

    def update(self, members: tuple[Member, ...], now: float) -> list[LostPeer]:
        """Merge what a list says of members; returns peers that died or began a new incarnation and owe this instance
        nothing."""
        known = self._state.members
        lost = []
        for member in members:
            if member.instance_id == self._state.settings.instance_id:
                continue
            before = known.find(member.instance_id)
            self._postponed.pop(member.instance_id, None)
            if before is not None and self._is_stale(before, member):
                continue
            if before is not None and self._contradicts(before, member) and self._is_at_stake(member.instance_id):
                self._doubt_listed(member, now)
                continue
            if before is not None and now < self._believed_from and _misses(before, member):
                self._postponed[member.instance_id] = member
                continue
            lost.extend(self._believe(member))
        return lost

    def tell_worker(self) -> None:
        """Say what changed in whom the worker may open tensor links to. Costs what changed, not the list."""
        members, gone = [], []
        for instance_id in sorted(self._changed):
            known, member = self._reached.pop(instance_id, None), self._state.members.find(instance_id)
            if member is not None and (reached := _reached_at(member)) is not None:
                self._reached[instance_id] = member
                if known is None or _reached_at(known) != reached:
                    members.append(member)
            elif known is not None:
                gone.append(instance_id)
        self._changed.clear()
        if members or gone:
            self._state.emit(TellWorker(Peers(members=tuple(members), gone=tuple(gone))))

    def _is_not_listed(self, instance_id: str) -> None:
        """The list that is followed does not have this peer, or not any more."""
        self._postponed.pop(instance_id, None)
        self._told.discard(instance_id)
        self._listed.pop(instance_id, None)
        known = self._state.members.find(instance_id)
        if known is not None and known.state == "dead":
            self._forget(instance_id)
        elif known is not None and self._source:
            self._absent.add(instance_id)

    def _forget(self, instance_id: str) -> None:
        """It is lost, and in no list."""
        del self._state.members[instance_id]
        self._doubts.clear(instance_id)
        self._absent.drop(instance_id)
        self._changed.add(instance_id)
        self._log.remove(instance_id)

    def _is_known(self, listed: Member) -> bool:
        """Whether a list tells of the life of a peer that is known here."""
        known = self._state.members.find(listed.instance_id)
        return known is not None and known.incarnation == listed.incarnation

    def _is_stale(self, known: Member, listed: Member) -> bool:
        """Whether a list tells of a former life of a peer that lives. Another incarnation is another life, also a
        smaller one, after a clock was set back; their order only decides between what two gManagers say."""
        is_doubtful = known.state in ("dead", "unreachable") or known.instance_id in self._state.suspects
        is_newer = is_doubtful or known.instance_id in self._told
        return listed.incarnation < known.incarnation and not is_newer

    def _contradicts(self, known: Member, listed: Member) -> bool:
        """Whether the list says that a peer which lives, as far as is known here, is gone or cannot be reached."""
        if known.state == "dead":
            return False
        return listed.incarnation != known.incarnation or listed.state in ("dead", "unreachable")

    def _is_at_stake(self, instance_id: str) -> bool:
        """Whether this instance has borrowed there, or lends to it."""
        return self._has_lent(instance_id) or bool(self._state.loans.of_debtor(instance_id))

    def _doubt_listed(self, listed: Member, now: float) -> None:
        """Keep to what is known until the peer itself shows that it is otherwise, but do not borrow there meanwhile."""
        told_before = self._listed.get(listed.instance_id)
        self._listed[listed.instance_id] = listed
        if told_before is None or _life(told_before) != _life(listed):
            wait_s = SILENT_S if listed.state == "unreachable" else LISTED_DEAD_S
            self._doubts.begin(listed.instance_id, now + wait_s, now)

    def _believe(self, member: Member) -> list[LostPeer]:
        """Take over what is listed; returns the peer if it died, or is another process than the one known here."""
        instance_id = member.instance_id
        known = self._state.members.find(instance_id)
        self._listed.pop(instance_id, None)
        self._state.members[instance_id] = member
        reached = self._reached.get(instance_id)
        if (None if reached is None else _reached_at(reached)) != _reached_at(member):
            self._changed.add(instance_id)
        self._log.put(member)
        if known is None:
            return []
        has_restarted = known.incarnation != member.incarnation
        if has_restarted or member.state == "dead":
            self._doubts.clear(instance_id)  # of the dead nothing more is to be found out
        if member.state == "dead" and instance_id in self._absent:
            self._forget(instance_id)
        if has_restarted or (member.state == "dead" and known.state != "dead"):
            return [LostPeer(instance_id, member.incarnation if has_restarted else None)]
        return []

    # --- doubt

    def suspect(self, instance_id: str, now: float) -> None:
        """Its control connection broke: do not borrow there; it is lost unless it is heard again soon."""
        self._doubts.begin(instance_id, now + SUSPECT_S, now)

    def silent(self, instance_id: str, now: float) -> None:
        """It did not answer in time: do not ask it again before it is heard; it is lost if that takes too long."""
        self._doubts.begin(instance_id, now + SILENT_S, now)

    def heard_from(self, peer_id: str, answer: PeerAnswer) -> list[LostPeer]:
        """It is there. Returns it as lost if the answer shows that it is another process than the one known here."""
        known = self._state.members.find(peer_id)
        listed = self._listed.get(peer_id)
        if known is not None and isinstance(answer, Renewed) and _is_successor(answer.incarnation, known, listed):
            successor = listed
            if successor is None or successor.incarnation != answer.incarnation:
                successor = msgspec.structs.replace(known, incarnation=answer.incarnation, state="starting", data=None)
            return self._believe(successor)
        if listed is None or known is None or listed.incarnation == known.incarnation:
            self._listed.pop(peer_id, None)
            self._doubts.clear(peer_id)
        else:  # it is asked again now and then, for as long as the list names a successor
            self._doubts.trust(peer_id)
        return []

    def drains(self, instance_id: str) -> None:
        """It says so itself, which no list may have told yet."""
        known = self._state.members.find(instance_id)
        if known is not None and known.state == "ready":
            self._believe(msgspec.structs.replace(known, state="draining"))

    def tick(self, now: float) -> list[LostPeer]:
        """Knock where it is due; returns peers that stayed silent for too long, each once, and those of them that are
        forgotten now."""
        lost = []
        for instance_id in self._absent.take_due(now):
            if self._state.suspects.get(instance_id) == GONE:
                lost.extend(self._give_up(instance_id))
            else:
                self._doubts.begin(instance_id, now + LISTED_DEAD_S, now)
        for instance_id, at in self._doubts.take_due(now):
            if self._doubts.lose_if_due(instance_id, at):
                lost.extend(self._give_up(instance_id))
            if instance_id in self._listed and not self._is_at_stake(instance_id):
                lost.extend(self._believe(self._listed[instance_id]))
            self._doubts.knock_if_due(instance_id, at, now)
        if self._postponed and now >= self._believed_from:
            lost.extend(self.update(tuple(self._postponed.values()), now))
        return lost

    def next_deadline(self) -> float:
        """When `tick` has something to do."""
        due = min(self._doubts.next_deadline(), self._absent.next_deadline())
        return min(due, self._believed_from) if self._postponed else due

    def _give_up(self, instance_id: str) -> list[LostPeer]:
        """It is lost by evidence of our own, and what is listed may stand."""
        listed = self._listed.get(instance_id)
        lost = (self._believe(listed) if listed is not None else []) or [LostPeer(instance_id, None)]
        if instance_id in self._absent:
            self._forget(instance_id)
        return lost

    def validate(self) -> None:
        """The worker was told of all that it may reach."""
        assert not self._changed, "what changed was not told"
        reached = {name: _reached_at(member) for name, member in self._state.members.items()}
        told = {name: _reached_at(member) for name, member in self._reached.items()}
        assert told == {name: at for name, at in reached.items() if at is not None}
        assert self._told <= reached.keys(), "a peer that is forgotten counts as told of"
        self._absent.validate(reached.keys())

    # --- what it tells

    def members_messages(self, query: MembersQuery) -> list[Members]:
        """The list, this instance included, or what changed in it since the asker's; in this order."""
        if self.own is not None:
            own, self._log.policy = self.own_now(), self._state.policy
            self._log.put(own if self._state.shares_memory else msgspec.structs.replace(own, lendable_blocks=0))
        return self._log.answer(query)

    def located(self, request_id: str) -> Located:
        """This instance serves who asks it."""
        own = self.own_now()
        if own.state != "ready":
            return Located(request_id=request_id, reason=f"instance {own.instance_id} is {own.state}")
        return Located(request_id=request_id, instance_id=own.instance_id, address=own.address)

    def own_now(self) -> Member:
        """This instance as of now."""
        assert self.own is not None
        free = self._state.pool.num_free
        return msgspec.structs.replace(self.own, state=self._state.instance_state, free_blocks=free)


def _reached_at(member: Member) -> tuple[int, DataEndpoint] | None:
    """What the worker opens tensor links to it by; None if it may not."""
    return None if member.state == "dead" or member.data is None else (member.incarnation, member.data)


def _misses(known: Member, listed: Member) -> bool:
    """Whether a list says of a ready peer that it is not there, as one does that was told nothing of it."""
    is_there = listed.state in ("ready", "draining") or listed.incarnation != known.incarnation
    return known.state == "ready" and not is_there


def _life(member: Member) -> tuple[int, str]:
    """What a list says of a peer's life."""
    return member.incarnation, member.state


def _is_successor(incarnation: int, known: Member, listed: Member | None) -> bool:
    """Whether a peer that answers with this incarnation is another process than the one known: a later one, or one that
    is listed too, whatever the order of their clocks."""
    is_listed = listed is not None and listed.incarnation == incarnation
    return incarnation > known.incarnation or (is_listed and incarnation != known.incarnation)
