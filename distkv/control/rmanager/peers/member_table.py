"""The peers that one rManager knows, and those it doubts, with the sums that requests are judged by."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, MutableMapping
from math import inf

from distkv.wire.messages.common import Member

GONE = -inf


class Suspects(MutableMapping[str, float]):
    """When each doubtful peer counts as lost; GONE once it does."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        self._lost_at: dict[str, float] = {}
        self._changed = changed

    def __getitem__(self, instance_id: str) -> float:
        return self._lost_at[instance_id]

    def __contains__(self, instance_id: object) -> bool:
        return instance_id in self._lost_at

    def __iter__(self) -> Iterator[str]:
        return iter(self._lost_at)

    def __len__(self) -> int:
        return len(self._lost_at)

    def __setitem__(self, instance_id: str, lost_at: float) -> None:
        self._lost_at[instance_id] = lost_at
        self._changed(instance_id)

    def __delitem__(self, instance_id: str) -> None:
        del self._lost_at[instance_id]
        self._changed(instance_id)


class MemberTable(MutableMapping[str, Member]):
    """Members by id, this instance not included. A change or a question costs O(log n), and what it returns.

    lendable_blocks: what all live peers may lend together; known_blocks: what all could that are listed, the dead too;
    num_loading: peers that still load, so that nobody knows what they will have; near_blocks: those on the host of this
    instance that may be asked. listed_from: from then on all there are have been named by a gManager.
    """

    def __init__(self) -> None:
        self.suspects = Suspects(self._weigh)
        self.listed_from = inf
        self.lendable_blocks = self.known_blocks = self.num_loading = self.near_blocks = 0
        self._host_key = ""
        self._near: dict[str, int] = {}  # lendable rBlocks of those on this host that may be asked for any
        self._members: dict[str, Member] = {}
        self._lendable: dict[str, int] = {}
        self._creditors: list[Member] = []  # by `_rank`
        self._filed: dict[str, Member] = {}

    def __getitem__(self, instance_id: str) -> Member:
        return self._members[instance_id]

    # A member list tells of all who changed, every second: what a dict has need not be made of __getitem__.

    def __contains__(self, instance_id: object) -> bool:
        return instance_id in self._members

    def find(self, instance_id: str) -> Member | None:
        """The peer of this name, if it is known."""
        return self._members.get(instance_id)

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __setitem__(self, instance_id: str, member: Member) -> None:
        before = self._members.get(instance_id)
        self.known_blocks += member.lendable_blocks - (0 if before is None else before.lendable_blocks)
        self.num_loading += member.is_loading - (before is not None and before.is_loading)
        self._members[instance_id] = member
        self._weigh(instance_id)

    def __delitem__(self, instance_id: str) -> None:
        gone = self._members.pop(instance_id)
        self.known_blocks -= gone.lendable_blocks
        self.num_loading -= gone.is_loading
        self._weigh(instance_id)

    def place_on(self, host_key: str) -> None:
        """This instance is on a host, by its key."""
        if host_key != self._host_key:
            self._host_key = host_key
            for name in self._members:
                self._weigh_near(name)

    def is_near(self, instance_id: str) -> bool:
        """Whether this peer is on the host of this instance."""
        member = self._members.get(instance_id)
        data = None if member is None else member.data
        return data is not None and bool(self._host_key) and data.host_key == self._host_key

    def may_lend(self, instance_id: str) -> bool:
        """Whether this peer may be asked for memory."""
        member = self._members.get(instance_id)
        if member is None or member.state != "ready" or not member.lendable_blocks:
            return False
        return instance_id not in self.suspects

    def is_draining(self, instance_id: str) -> bool:
        """Whether this peer leaves when its own requests have ended, and those that it lends to."""
        member = self._members.get(instance_id)
        return member is not None and member.state == "draining"

    @property
    def num_creditors(self) -> int:
        """Peers that may be asked for memory."""
        return len(self._creditors)

    def num_creditors_with(self, free_blocks: int) -> int:
        """Those of them that have so many free rBlocks, or more: the first so many of `creditors`."""
        return bisect_left(self._creditors, (1 - free_blocks, ""), key=_rank)

    def creditors(self, start: int, stop: int) -> list[Member]:
        """The peers from `start` to before `stop` that may be asked for memory, in the order of their free rBlocks,
        most first."""
        return self._creditors[start:stop]

    def validate(self) -> None:
        """The sum and the order are those of the members."""
        filed = {name: member for name, member in self._members.items() if self.may_lend(name)}
        assert filed == self._filed and sorted(filed.values(), key=_rank) == self._creditors, "creditors misfiled"
        assert self.lendable_blocks == sum(map(self.lendable_of, self._members))
        assert self.known_blocks == sum(member.lendable_blocks for member in self._members.values())
        assert self.num_loading == sum(member.is_loading for member in self._members.values())
        assert self._near == {name: one.lendable_blocks for name, one in filed.items() if self.is_near(name)}
        assert self.near_blocks == sum(self._near.values())

    def lendable_of(self, instance_id: str) -> int:
        """What this peer may lend, of `lendable_blocks`."""
        member = self._members.get(instance_id)
        if member is None or member.state not in ("ready", "unreachable"):
            return 0
        return 0 if instance_id in self.suspects and self.suspects[instance_id] == GONE else member.lendable_blocks

    def _weigh(self, instance_id: str) -> None:
        lendable = self.lendable_of(instance_id)
        self.lendable_blocks += lendable - self._lendable.pop(instance_id, 0)
        if lendable:
            self._lendable[instance_id] = lendable
        self._weigh_near(instance_id)
        before = self._filed.get(instance_id)
        now = self._members[instance_id] if self.may_lend(instance_id) else None
        if before is now:
            return
        if before is not None:
            del self._creditors[bisect_left(self._creditors, _rank(before), key=_rank)]
            del self._filed[instance_id]
        if now is not None:
            self._filed[instance_id] = now
            insort(self._creditors, now, key=_rank)

    def _weigh_near(self, instance_id: str) -> None:
        is_asked = self.is_near(instance_id) and self.may_lend(instance_id)
        blocks = self._members[instance_id].lendable_blocks if is_asked else 0
        self.near_blocks += blocks - self._near.pop(instance_id, 0)
        if blocks:
            self._near[instance_id] = blocks


def _rank(member: Member) -> tuple[int, str]:
    """Those that have most free rBlocks first."""
    return -member.free_blocks, member.instance_id
