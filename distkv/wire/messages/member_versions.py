"""The member list as versions: how `Members` says what changed since one of them, and how a receiver follows.

Every change of one member makes a new version. A list is sent as the changes since a version that the receiver has, in
parts; the whole list is the changes since version 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from operator import itemgetter

from distkv.wire.messages.common import Member
from distkv.wire.messages.to_gmanager import MembersQuery
from distkv.wire.messages.to_rmanager import Members

PART_MEMBERS = 256
"""Most changes in one message: it is encoded and read in well under a millisecond."""
KEPT_GONE = 1024
"""Members that are no more are remembered for receivers with an older list; beyond that they get the whole one."""

_when, _what = itemgetter(0), itemgetter(1)


class MemberLog:
    """One sender's member list. version: of the newest change. policy, settles_in_s: told with the list. Putting costs
    O(1), `since` what it returns."""

    def __init__(self, incarnation: int, policy: str = "contract") -> None:
        """incarnation: of the sender, > 0; versions of another one are not its own. policy: see `Members.policy`."""
        self.version = 0
        self.policy = policy
        self.settles_in_s = 0.0
        self._incarnation = incarnation
        self._members: dict[str, tuple[int, Member]] = {}  # the least recently changed first
        self._gone: dict[str, int] = {}
        self._complete_from = 0

    def __len__(self) -> int:
        return len(self._members)

    def put(self, member: Member) -> None:
        """It is new, or changed; one that is as it was makes no version."""
        known = self._members.get(member.instance_id)
        if known is not None and known[1] == member:
            return
        self.version += 1
        self._members.pop(member.instance_id, None)
        self._gone.pop(member.instance_id, None)
        self._members[member.instance_id] = self.version, member

    def remove(self, instance_id: str) -> None:
        """It is no member any more."""
        if self._members.pop(instance_id, None) is None:
            return
        self.version += 1
        self._gone[instance_id] = self.version
        if len(self._gone) > KEPT_GONE:
            self._complete_from = self._gone.pop(next(iter(self._gone)))

    def get(self, instance_id: str) -> Member | None:
        """One member, if it is there."""
        known = self._members.get(instance_id)
        return None if known is None else known[1]

    def version_of(self, instance_id: str) -> int:
        """That in which a member changed last."""
        return self._members[instance_id][0]

    def all(self) -> Iterator[Member]:
        """Every member, the least recently changed first."""
        return (member for _, member in self._members.values())

    def knows(self, query: MembersQuery) -> bool:
        """Whether what changed since the asker's version is known here."""
        return query.incarnation == self._incarnation and self._complete_from <= query.version <= self.version

    def newest(self) -> Members:
        """No list, only which version there is."""
        return Members(
            version=self.version,
            incarnation=self._incarnation,
            base=self.version,
            policy=self.policy,
            settles_in_s=self.settles_in_s,
        )

    def answer(self, query: MembersQuery) -> list[Members]:
        """What the asker needs to have this version, in order."""
        if self.knows(query):
            return self.since(query.version)
        return [self.newest()] if query.changes_only else self.since(0)

    def since(self, version: int) -> list[Members]:
        """What changed since then, in parts; one without members when nothing did. It is the whole list where it is not
        known any more who has gone since."""
        if version < self._complete_from:
            version = 0
        changes: list[tuple[int, Member | str]]
        if version:
            changes = list(takewhile(lambda change: change[0] > version, reversed(self._members.values())))
            gone = takewhile(lambda change: change[1] > version, reversed(self._gone.items()))
            changes += [(removed, name) for name, removed in gone]
            changes.sort(key=_when)
        else:  # none that is gone is named
            changes = list(self._members.values())
        parts, base = [], version
        for start in range(0, max(1, len(changes)), PART_MEMBERS):
            part = changes[start : start + PART_MEMBERS]
            is_last = start + PART_MEMBERS >= len(changes)
            newest = self.version if is_last else part[-1][0]
            parts.append(
                Members(
                    version=newest,
                    incarnation=self._incarnation,
                    base=base,
                    members=tuple(what for _, what in part if isinstance(what, Member))
                    if version
                    else tuple(map(_what, part)),
                    gone=tuple(what for _, what in part if isinstance(what, str)) if version else (),
                    more=not is_last,
                    newest=0 if is_last else self.version,
                    policy=self.policy,
                    settles_in_s=self.settles_in_s,
                )
            )
            base = newest
        return parts

    def validate(self) -> None:
        """Versions grow along the log, and nobody is a member and gone."""
        versions = [changed for changed, _ in self._members.values()]
        for found in (versions, list(self._gone.values())):
            assert found == sorted(set(found)) and (not found or found[-1] <= self.version), "versions out of order"
        assert not self._members.keys() & self._gone.keys(), "a member that is gone"
        assert all(member.instance_id == name for name, (_, member) in self._members.items()), "a member misfiled"


class MemberCursor:
    """How far a receiver has followed one sender's list.

    A whole list comes in parts, maybe with changes among them, and says nothing of those who are no more. `_named` are
    those that were named since it began, until it has come as far as `_whole_at`.
    """

    def __init__(self) -> None:
        self._incarnation = 0
        self._version = 0
        self._announced = 0
        self._named: set[str] | None = None
        self._whole_at = 0

    def take(self, message: Members) -> bool:
        """Whether to apply a message; one that is older than what is known changes nothing, one that builds on what is
        not known leaves a gap."""
        if not self._follow(message):
            return False
        if message.base == 0:
            self._named, self._whole_at = set(), message.newest or message.version
        if self._named is not None:
            self._named.difference_update(message.gone)
            self._named.update(member.instance_id for member in message.members)
        return True

    def take_whole(self, message: Members) -> set[str] | None:
        """After a message was applied: the names of all members, if a whole list has come with it; all others are no
        more."""
        if message.more or self._version < self._whole_at:
            return None
        named, self._named = self._named, None
        return named

    def _follow(self, message: Members) -> bool:
        is_same = message.incarnation == self._incarnation != 0
        if message.base and not (is_same and message.base <= self._version):
            self.announced(message.incarnation, message.version)
            return False
        if is_same and message.base == 0 and message.newest > self._version:
            self._version = message.version
            return True
        if is_same and message.version <= self._version:
            return message.version == self._version and message.base == 0 and not message.more
        if not is_same:
            self._announced = 0
        self._incarnation, self._version = message.incarnation, message.version
        return True

    def announced(self, incarnation: int, version: int) -> None:
        """The sender has this version."""
        if incarnation != self._incarnation:
            self._incarnation, self._version, self._announced = incarnation, 0, version
        else:
            self._announced = max(self._announced, version)

    @property
    def is_behind(self) -> bool:
        """Whether there is a version that is not here."""
        return self._announced > self._version

    def query(self) -> MembersQuery:
        """Ask for what is not here."""
        return MembersQuery(incarnation=self._incarnation, version=self._version)
