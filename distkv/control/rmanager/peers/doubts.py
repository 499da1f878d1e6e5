"""Peers that one rManager has reason to doubt: when each counts as lost, and the pings that may clear it."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass

from distkv.control.commands import TellPeer
from distkv.control.rmanager.peers.member_table import GONE
from distkv.control.rmanager.state import RManagerState
from distkv.wire.messages.to_rmanager import Renew

FIRST_KNOCK_S = 0.5
LONGEST_KNOCK_S = 16.0
"""The pauses between knocks double from the first to the longest."""


@dataclass(slots=True)
class Knocks:
    """At a doubtful peer: when the next is due, and the pause after it."""

    next_at: float
    pause_s: float = FIRST_KNOCK_S


class Doubts:
    """Nothing is borrowed from who is in `suspects`; it is knocked at until it is cleared."""

    def __init__(self, state: RManagerState) -> None:
        self._state = state
        self._knocks: dict[str, Knocks] = {}
        self._due: list[tuple[float, str]] = []

    def begin(self, instance_id: str, lost_at: float, now: float) -> None:
        """It counts as lost at `lost_at`, unless it is cleared before, or was to be lost sooner. It is asked before
        that, however long the pauses of former doubts have become."""
        suspects, member = self._state.suspects, self._state.members.find(instance_id)
        if member is None or member.state == "dead":
            return
        if lost_at < suspects.get(instance_id, math.inf):
            suspects[instance_id] = lost_at
            heapq.heappush(self._due, (lost_at, instance_id))
        knocks = self._knocks.get(instance_id)
        if knocks is None or knocks.next_at > lost_at:
            self._knocks[instance_id] = knocks = Knocks(now)
            self._knock(instance_id, knocks, now)

    def trust(self, instance_id: str) -> None:
        """It is there; it is knocked at all the same."""
        self._state.suspects.pop(instance_id, None)

    def clear(self, instance_id: str) -> None:
        """There is nothing more to find out."""
        self.trust(instance_id)
        self._knocks.pop(instance_id, None)

    def take_due(self, now: float) -> Iterator[tuple[str, float]]:
        """Of whom something is due, and since when: first whether it is lost, then to knock at it."""
        while self._due and self._due[0][0] <= now:
            at, instance_id = heapq.heappop(self._due)
            yield instance_id, at

    def lose_if_due(self, instance_id: str, at: float) -> bool:
        """Whether it is lost, from now on."""
        is_lost = self._state.suspects.get(instance_id) == at
        if is_lost:
            self._state.suspects[instance_id] = GONE
        return is_lost

    def knock_if_due(self, instance_id: str, at: float, now: float) -> None:
        """Ask once more whether it is there."""
        knocks = self._knocks.get(instance_id)
        if knocks is not None and knocks.next_at == at:
            self._knock(instance_id, knocks, now)

    def next_deadline(self) -> float:
        """When something is due."""
        return self._due[0][0] if self._due else math.inf

    def _knock(self, instance_id: str, knocks: Knocks, now: float) -> None:
        """Ask whether it is there; any answer clears it."""
        if instance_id not in self._state.members:  # forgotten meanwhile
            self.clear(instance_id)
            return
        ping = Renew(renewal=self._state.next_id(), spans=(), ttl_s=0.0)
        self._state.emit(TellPeer(instance_id, ping))
        knocks.next_at = now + knocks.pause_s
        knocks.pause_s = min(LONGEST_KNOCK_S, 2.0 * knocks.pause_s)
        heapq.heappush(self._due, (knocks.next_at, instance_id))
