"""The peers that one rManager knows, and those it doubts, with the sums that requests are judged by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping

from distkv.wire.messages.common import Member

GONE = float("-inf")


class Suspects(MutableMapping[str, float]):
    """When each doubtful peer counts as lost; GONE once it does."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        self._lost_at: dict[str, float] = {}
        self._changed = changed

    def __getitem__(self, instance_id: str) -> float:
        return self._lost_at[instance_id]

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
    """Members by id, this instance not included. Each change costs the same, however many there are.

    num_creditors: peers that may be asked for memory. lendable_blocks: what all live peers may lend together.
    """

    def __init__(self) -> None:
        self.suspects = Suspects(self._weigh)
        self.num_creditors = 0
        self.lendable_blocks = 0
        self._members: dict[str, Member] = {}
        self._weights: dict[str, tuple[int, int]] = {}

    def __getitem__(self, instance_id: str) -> Member:
        return self._members[instance_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __setitem__(self, instance_id: str, member: Member) -> None:
        self._members[instance_id] = member
        self._weigh(instance_id)

    def __delitem__(self, instance_id: str) -> None:
        del self._members[instance_id]
        self._weigh(instance_id)

    def may_lend(self, instance_id: str) -> bool:
        """Whether this peer may be asked for memory."""
        member = self._members.get(instance_id)
        return member is not None and member.state == "ready" and instance_id not in self.suspects

    def creditors(self) -> list[Member]:
        """Peers that may be asked for memory."""
        return [member for member in self._members.values() if self.may_lend(member.instance_id)]

    def validate(self) -> None:
        """The sums are those of the members."""
        assert self.num_creditors == sum(self.may_lend(instance_id) for instance_id in self._members)
        assert self.lendable_blocks == sum(self._weight(instance_id)[1] for instance_id in self._members)

    def _weight(self, instance_id: str) -> tuple[int, int]:
        member = self._members.get(instance_id)
        if member is None:
            return 0, 0
        is_live = member.state in ("ready", "unreachable") and self.suspects.get(instance_id) != GONE
        return int(self.may_lend(instance_id)), member.lendable_blocks if is_live else 0

    def _weigh(self, instance_id: str) -> None:
        was, now = self._weights.pop(instance_id, (0, 0)), self._weight(instance_id)
        self.num_creditors += now[0] - was[0]
        self.lendable_blocks += now[1] - was[1]
        if instance_id in self._members:
            self._weights[instance_id] = now
