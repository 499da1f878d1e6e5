"""Who gets which part of the member list when: changes to all, the whole list to who asks or has joined.

Changes that come together are one broadcast. What is sent is bounded in members per second, so that the list of a large
cluster, which everybody may want at once, neither fills the queues nor keeps the gManager from its other work. Whoever
waits for the list is sent no changes meanwhile: they could not be applied, and the list has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import islice

import msgspec

from distkv.control.commands import Broadcast
from distkv.wire.messages.member_versions import PART_MEMBERS, MemberLog
from distkv.wire.messages.to_gmanager import MembersQuery
from distkv.wire.messages.to_rmanager import Members

COALESCE_S = 0.05
"""Least time between two broadcasts."""
MEMBERS_PER_S = 500_000
"""Most members sent, on average; a member takes 0.2 to 0.5 KB, and none 2 KiB."""
AHEAD_S = 0.02
"""So much of that average may be sent ahead, so that little things never wait."""
MEMBERS_AT_ONCE = 25_000
"""Most members sent to who asks, in one event, beyond the first of them."""
SETTLING_S = 10.0
"""After the first instance, also of a new fleet once nobody was left of the one before, so long others join that were
started with it; they load their weights after that."""
GREETINGS_AT_ONCE = 64
"""Most joiners greeted one by one in one event: each message is its own, and takes some 20 us to encode and send."""


class MemberFeed:
    """sent_version: what everybody was sent last. expected: once so many joined the list is settled; 0 if unknown."""

    def __init__(self, incarnation: int, policy: str = "contract", expected: int = 0) -> None:
        self.incarnation = incarnation
        self.log = MemberLog(incarnation, policy)
        self.sent_version = 0
        self._expected = expected
        self._asking: dict[bytes, MembersQuery] = {}
        self._joined: dict[bytes, tuple[str, bool]] = {}
        self._told: dict[bytes, str] = {}
        self._next_broadcast = -math.inf
        self._paid_at = -math.inf
        self._flushed_at = -math.inf
        self._settled_at: float | None = None

    def ask(self, route: bytes, query: MembersQuery) -> None:
        """Somebody wants the list, or what changed; asking again replaces the query."""
        self._asking[route] = query

    def has_told(self, instance_id: str) -> bool:
        """Whether everybody was sent what a member is now."""
        return self.log.version_of(instance_id) <= self.sent_version

    def greet(self, route: bytes, instance_id: str, *, is_new: bool) -> None:
        """An instance has joined. It hears so when all others are told: who finds it ready finds it known. is_new: it
        was not there before, so that it has no list: where that is long, it follows as if it had been asked for."""
        self._joined[route] = instance_id, is_new or self._joined.get(route, ("", False))[1]

    def flush(self, now: float, subscribers: Callable[[], tuple[bytes, ...]]) -> list[Broadcast]:
        """What may be sent now. subscribers: the routes of all who get changes without asking."""
        self._flushed_at = now
        self.log.settles_in_s = self._settle(now)
        sent: list[Broadcast] = []
        if not self._has_changes or now >= self._broadcast_at:
            self._tell_joined()
        if self._told:
            sent += self._greetings()
        if self._has_changes and now >= self._broadcast_at:
            routes = self._followers(subscribers())
            sent += [Broadcast(routes, part) for part in self.log.since(self.sent_version)] if routes else []
            self.sent_version = self.log.version
            self._next_broadcast = now + COALESCE_S
            self._spend(now, sum(len(routes) * len(one.body.members) for one in sent))
        if self._asking and now >= self._may_send_at:
            answers = self._answers()
            self._spend(now, sum(len(one.routes) * len(one.body.members) for one in answers))
            sent += answers
        return sent

    def _settle(self, now: float) -> float:
        """For how long others may join yet that were started with those listed."""
        if not len(self.log):
            self._settled_at = None
            return SETTLING_S
        if self._settled_at is None:
            self._settled_at = now + SETTLING_S
        if 0 < self._expected <= len(self.log):
            self._settled_at = min(self._settled_at, now)
        return max(0.0, self._settled_at - now)

    def _tell_joined(self) -> None:
        """What they wait for is told to all others now."""
        is_long = len(self.log) > PART_MEMBERS
        for route, (instance_id, is_new) in self._joined.items():
            self._told[route] = instance_id
            if is_new and is_long:
                self._asking.setdefault(route, MembersQuery())
        self._joined.clear()

    def _greetings(self) -> list[Broadcast]:
        """The list if it fits one message, else each joiner only itself: some of them, the others in the next event."""
        if len(self.log) <= PART_MEMBERS:
            told, self._told = self._told, {}
            return [Broadcast(tuple(told), self.log.since(0)[0])]
        newest = self.log.newest()
        greeted = [(route, self._told.pop(route)) for route in tuple(islice(self._told, GREETINGS_AT_ONCE))]
        return [
            Broadcast((route,), msgspec.structs.replace(newest, members=(member,)))
            for route, instance_id in greeted
            if (member := self.log.get(instance_id)) is not None
        ]

    def _followers(self, routes: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Those of them that can apply what changed: who waits for more than that gets it with the answer."""
        if not self._asking:
            return routes
        return tuple(
            route for route in routes if (query := self._asking.get(route)) is None or self._is_followed_by(query)
        )

    def _is_followed_by(self, query: MembersQuery) -> bool:
        """Whether who asks so has what was sent to all, or will not get what is missing."""
        is_same = query.incarnation == self.incarnation
        return query.changes_only or (is_same and query.version >= self.sent_version)

    def _answers(self) -> list[Broadcast]:
        """Those who asked first get what they miss; all that miss the same get the same."""
        routes: dict[tuple[int, bool], list[bytes]] = {}
        parts: dict[tuple[int, bool], list[Members]] = {}
        num_members = 0
        while self._asking and num_members < MEMBERS_AT_ONCE:
            route = next(iter(self._asking))
            query = self._asking.pop(route)
            is_known = self.log.knows(query)
            wanted = query.version if is_known else 0, is_known or not query.changes_only
            if wanted not in parts:
                parts[wanted] = self.log.since(wanted[0]) if wanted[1] else [self.log.newest()]
            routes.setdefault(wanted, []).append(route)
            num_members += sum(len(part.members) for part in parts[wanted])
        return [Broadcast(tuple(routes[wanted]), part) for wanted in parts for part in parts[wanted]]

    def _spend(self, now: float, num_members: int) -> None:
        self._paid_at = max(self._paid_at, now) + num_members / MEMBERS_PER_S

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is to be sent, now or later."""
        return not (self._has_changes or self._asking or self._joined or self._told)

    @property
    def _has_changes(self) -> bool:
        return self.log.version > self.sent_version

    @property
    def _broadcast_at(self) -> float:
        return max(self._next_broadcast, self._may_send_at)

    @property
    def _may_send_at(self) -> float:
        return self._paid_at - AHEAD_S

    def next_deadline(self) -> float:
        """When something may be sent that is waiting now."""
        if self.is_quiet:
            return math.inf
        if self._told:
            return self._flushed_at
        broadcast_at = self._broadcast_at if self._has_changes else math.inf
        return min(broadcast_at, self._may_send_at if self._asking else math.inf)

    def validate(self) -> None:
        """Nobody was sent what is not there."""
        self.log.validate()
        assert self.sent_version <= self.log.version, "a version was sent that is not there"
