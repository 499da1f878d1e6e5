"""Ready instances in the order in which requests go there while no gManager chooses."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection

from distkv.wire.messages.common import Member

Standing = tuple[int, int, str]
"""Requests of this client there, - free rBlocks, its name: less is better."""


class InstanceOrder:
    """Those with the fewest requests of this client first, of these those with most free memory.

    A change costs O(log n) comparisons; a question costs what it passes over.
    """

    def __init__(self) -> None:
        self._ready: dict[str, Member] = {}
        self._standings: dict[str, Standing] = {}
        self._order: list[Standing] = []
        self._at: dict[str, set[str]] = {}
        self._live: dict[str, int] = {}

    def put(self, member: Member) -> None:
        """An instance is listed like this."""
        self.remove(member.instance_id)
        if member.state == "ready" and member.address:
            self._ready[member.instance_id] = member
            self._at.setdefault(member.address, set()).add(member.instance_id)
            self._file(member)

    def remove(self, instance_id: str) -> None:
        """An instance is listed no more."""
        if (member := self._ready.pop(instance_id, None)) is None:
            return
        self._unfile(instance_id)
        here = self._at[member.address]
        here.remove(instance_id)
        if not here:
            del self._at[member.address]

    def has_live(self, address: str, num_requests: int) -> None:
        """So many requests of this client are at an address."""
        if num_requests:
            self._live[address] = num_requests
        else:
            self._live.pop(address, None)
        for instance_id in self._at.get(address, ()):
            self._unfile(instance_id)
            self._file(self._ready[instance_id])

    def first(
        self,
        exclude: Collection[str],
        is_suspected: Callable[[str], bool],
        takes: Callable[[Member], bool] = lambda member: True,
    ) -> Member | None:
        """The best one that is not excluded; one that does not take the request only if no other does, and one that is
        suspected only if all others are."""
        last: dict[tuple[bool, bool], Member] = {}
        for _, _, instance_id in self._order:
            if instance_id in exclude:
                continue
            member = self._ready[instance_id]
            doubts = not takes(member), is_suspected(instance_id)
            if not any(doubts):
                return member
            last.setdefault(doubts, member)
        return last[min(last)] if last else None

    def _file(self, member: Member) -> None:
        standing = self._live.get(member.address, 0), -member.free_blocks, member.instance_id
        self._standings[member.instance_id] = standing
        insort(self._order, standing)

    def _unfile(self, instance_id: str) -> None:
        del self._order[bisect_left(self._order, self._standings.pop(instance_id))]
