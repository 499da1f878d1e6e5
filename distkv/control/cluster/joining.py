"""Who may join: what live instances serve and where, so that one that differs is found without looking at all."""

from __future__ import annotations

from itertools import islice

from distkv.control.cluster.ledger import Entry
from distkv.wire.messages.to_gmanager import Join

NAMED_IN_A_REASON = 8
NEW_S = 10.0
"""So long after it began a gManager may know only strangers: all others join within a few seconds."""
MOST_TURNED_OUT = 8
"""Of more that agree nobody knows that they are strangers."""


class LiveInstances:
    """Those that are not dead, by address and by what they serve."""

    def __init__(self) -> None:
        self._addresses: dict[str, dict[str, Entry]] = {}
        self._compats: dict[str, dict[str, Entry]] = {}
        self._filed: dict[str, tuple[str, str]] = {}

    def file(self, entry: Entry) -> None:
        """It has joined, joined again, or changed its state."""
        name = entry.member.instance_id
        self.drop(name)
        if entry.state != "dead":
            self._filed[name] = entry.member.address, entry.compat
            self._addresses.setdefault(entry.member.address, {})[name] = entry
            self._compats.setdefault(entry.compat, {})[name] = entry

    def drop(self, instance_id: str) -> None:
        """It is dead or not known."""
        filed = self._filed.pop(instance_id, None)
        if filed is not None:
            for index, key in zip((self._addresses, self._compats), filed, strict=True):
                del index[key][instance_id]
                if not index[key]:
                    del index[key]

    def refusal(self, join: Join) -> str:
        """Why an instance cannot be in this cluster, whatever its name; empty if it can."""
        member = join.member
        name = member.instance_id
        if not name.isprintable():
            return f"an instance's name has printable characters only, got {name!a}"
        if member.state in ("unreachable", "dead"):
            return f"{name} says that it is {member.state}, which only others can find"
        if member.state != "starting" and not join.compat:
            return f"{name} is {member.state} and does not say what it serves"
        there = self._addresses.get(member.address, {})
        taken_by = next((other for other, entry in there.items() if other != name and entry.lives), None)
        if taken_by is not None:
            return f"{member.address} is the address of {taken_by}, which lives"
        return self._differing(join)

    def strangers(self, join: Join, now_s: float) -> list[Entry]:
        """Those that keep out one that belongs to this cluster, if they are few and none of them does: they were let in
        before it by a gManager that has just begun. now_s: attentive time."""
        if not join.belongs or not join.compat or now_s >= NEW_S:
            return []
        groups = (group for compat, group in self._compats.items() if compat not in ("", join.compat))
        found = list(islice((entry for group in groups for entry in group.values()), MOST_TURNED_OUT + 1))
        return [] if len(found) > MOST_TURNED_OUT or any(entry.belongs for entry in found) else found

    def _differing(self, join: Join) -> str:
        """Why it cannot join live instances whose rBlocks it could not read; empty if there are none. One that starts
        does not know what it is yet."""
        if not join.compat:
            return ""
        others = [group for compat, group in self._compats.items() if compat not in ("", join.compat)]
        own = join.member.instance_id
        count = sum(len(group) - (own in group) for group in others)
        some = list(
            islice((entry for group in others for name, entry in group.items() if name != own), NAMED_IN_A_REASON)
        )
        if not some:
            return ""
        more = count - len(some)
        names = ", ".join(entry.member.instance_id for entry in some) + (f" and {more} more" if more else "")
        what = differences(some[0].serves, join.serves) or f"another model, dtype or block layout than {own}"
        return f"instances {names} serve {what}; one cluster serves one"

    def validate(self, entries: dict[str, Entry]) -> None:
        """All who are not dead are here, by what they are now."""
        filed = {name: (e.member.address, e.compat) for name, e in entries.items() if e.state != "dead"}
        assert filed == self._filed, "live instances misfiled"
        for position, index in enumerate((self._addresses, self._compats)):
            found = {name: key for key, group in index.items() for name in group}
            assert found == {name: keys[position] for name, keys in filed.items()}, "live instances misfiled"


def why_turned_out(join: Join, stranger: Entry) -> str:
    """What a stranger is told that was let in before this one."""
    what = differences(join.serves, stranger.serves) or "another model, dtype or block layout"
    return f"{join.member.instance_id}, which was in the cluster before, serves {what}; one cluster serves one"


def differences(theirs: str, ours: str) -> str:
    """What differs between two `Join.serves`: their values, and ours in brackets; empty where that is not known."""
    known = [dict(fact.rsplit(" ", 1) for fact in serves.split(", ") if " " in fact) for serves in (theirs, ours)]
    there, here = known
    return ", ".join(
        f"{name} {there[name]} (not {here[name]})" for name in there if here.get(name, there[name]) != there[name]
    )
