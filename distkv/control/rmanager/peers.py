"""The member list as one rManager has it, and which peers it has reason to doubt."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from distkv.control.commands import TellPeer
from distkv.control.rmanager.state import GONE, RManagerState
from distkv.wire.messages.common import Member
from distkv.wire.messages.to_client import Located
from distkv.wire.messages.to_rmanager import Members, Renew

SUSPECT_S = 1.0
SILENT_S = 4.0
"""How long a peer whose connection broke, and one that did not answer, may stay unheard before it counts as lost."""


@dataclass(frozen=True, slots=True)
class LostPeer:
    """A peer that is gone; `new_incarnation` is that of its successor if there is one already."""

    instance_id: str
    new_incarnation: int | None


class PeerBook:
    """Members other than this instance. A list that lacks somebody proves nothing: the gManager may have restarted."""

    def __init__(self, state: RManagerState) -> None:
        self._state = state
        self._version = 0
        self.own: Member | None = None

    def update(self, members: tuple[Member, ...]) -> list[LostPeer]:
        """Merge a member list; returns peers that died or began a new incarnation."""
        known = self._state.members
        lost = []
        for member in members:
            if member.instance_id == self._state.settings.instance_id:
                continue
            before = known.get(member.instance_id)
            if before is not None and member.incarnation < before.incarnation:
                continue
            if before is not None and before.incarnation != member.incarnation:
                lost.append(LostPeer(member.instance_id, member.incarnation))
            elif member.state == "dead" and (before is None or before.state != "dead"):
                lost.append(LostPeer(member.instance_id, None))
            known[member.instance_id] = member
            self._version += 1
        named = {member.instance_id for member in members}
        for instance_id in [i for i, m in known.items() if m.state == "dead" and i not in named]:
            del known[instance_id]
        return lost

    def reachable(self) -> tuple[Member, ...]:
        """Peers that the worker may open tensor links to."""
        return tuple(m for m in self._state.members.values() if m.state != "dead" and m.data is not None)

    def suspect(self, instance_id: str, now: float) -> None:
        """Its control connection broke: do not borrow there; it is lost unless it is heard again soon."""
        suspects = self._state.suspects
        if instance_id in self._state.members:
            suspects[instance_id] = min(now + SUSPECT_S, suspects.get(instance_id, now + SUSPECT_S))

    def silent(self, instance_id: str, now: float) -> None:
        """It did not answer in time: do not ask it again before it is heard; it is lost if that takes too long."""
        if instance_id in self._state.members:
            self._state.suspects.setdefault(instance_id, now + SILENT_S)

    def heard_from(self, sender: str) -> None:
        """It is there."""
        self._state.suspects.pop(sender, None)

    def ping(self) -> None:
        """Ask the doubtful whether they are there; any answer clears them."""
        for instance_id in self._state.suspects:
            if instance_id in self._state.members:
                ping = Renew(renewal=self._state.next_id(), spans=(), ttl_s=0.0)
                self._state.emit(TellPeer(instance_id, ping))

    def given_up(self, now: float) -> list[str]:
        """Suspects that stayed silent for too long; each is returned once."""
        gone = [i for i, lost_at in self._state.suspects.items() if GONE < lost_at <= now]
        for instance_id in gone:
            self._state.suspects[instance_id] = GONE
        return gone

    def members_message(self) -> Members:
        """The list, this instance included."""
        others = tuple(self._state.members.values())
        return Members(version=self._version, members=others + ((self.own_now(),) if self.own else ()))

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
