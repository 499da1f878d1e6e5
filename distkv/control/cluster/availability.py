"""Ready instances by what they have: room for requests, memory to lend. Policies look into it by `Instances`.

A change of one instance costs O(log n) comparisons; a question looks at what it returns or skips, and at one instance
for each number of requests that some instance has, which counts to `MOST_LOAD`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from distkv.control.cluster.policy.interface import MOST_LOAD, InstanceView

Key = tuple[int, str]
"""Less of it is more: (- what an instance has, its name)."""


class Filed(NamedTuple):
    """Where a ready instance stands."""

    host_key: str
    is_waiting: bool
    load: int
    room: Key
    lends: Key


class Availability:
    """The `Instances` that policies see. view, views: one of them by name, and all."""

    def __init__(self, view: Callable[[str], InstanceView | None], views: Callable[[], Iterator[InstanceView]]) -> None:
        self.get = view
        self.all = views
        self._filed: dict[str, Filed] = {}
        self._rooms = {False: _Rooms(), True: _Rooms()}
        self._lenders: list[Key] = []
        self._hosts: dict[str, list[Key]] = {}

    # --- what changes

    def put(self, view: InstanceView) -> None:
        """An instance is as this says from now on."""
        name = view.instance_id
        if view.state != "ready":
            self.remove(name)
            return
        lends = -view.lendable_blocks, name
        filed = Filed(view.host_key, view.waiting > 0, min(view.load, MOST_LOAD), (-view.free_tokens, name), lends)
        before = self._filed.get(name)
        if before == filed:
            return
        self._filed[name] = filed
        if before is None or before[1:4] != filed[1:4]:
            if before is not None:
                self._rooms[before.is_waiting].remove(before)
            self._rooms[filed.is_waiting].add(filed)
        if before is None or (before.host_key, before.lends) != (filed.host_key, filed.lends):
            self._lend_no_more(before)
            if view.lendable_blocks > 0:
                insort(self._lenders, filed.lends)
                insort(self._hosts.setdefault(filed.host_key, []), filed.lends)

    def remove(self, instance_id: str) -> None:
        """An instance is not ready, or not there."""
        filed = self._filed.pop(instance_id, None)
        if filed is not None:
            self._rooms[filed.is_waiting].remove(filed)
            self._lend_no_more(filed)

    def _lend_no_more(self, filed: Filed | None) -> None:
        if filed is None or filed.lends[0] >= 0:
            return
        host = self._hosts[filed.host_key]
        for keys in (self._lenders, host):
            del keys[bisect_left(keys, filed.lends)]
        if not host:
            del self._hosts[filed.host_key]

    # --- questions

    def fitting(self, num_tokens: int, *, waiting: bool, skip: Collection[str]) -> InstanceView | None:
        name = self._rooms[waiting].fitting(num_tokens, skip)
        return None if name is None else self.get(name)

    def roomiest(self, *, waiting: bool, skip: Collection[str]) -> InstanceView | None:
        name = self._rooms[waiting].roomiest(skip)
        return None if name is None else self.get(name)

    def lenders(self, host_key: str | None, *, skip: Collection[str]) -> Iterator[InstanceView]:
        for _, name in self._lenders if host_key is None else self._hosts.get(host_key, ()):
            if name not in skip and (view := self.get(name)) is not None:
                yield view

    def validate(self) -> None:
        """Everything stands where its view says, and nothing else does."""
        again = Availability(self.get, self.all)
        for view in self.all():
            again.put(view)
        assert (again._filed, again._lenders, again._hosts) == (self._filed, self._lenders, self._hosts), "misfiled"
        assert all(again._rooms[waiting] == rooms for waiting, rooms in self._rooms.items()), "rooms misfiled"


class _Rooms:
    """Instances by load, and of equal load by the room that they have."""

    def __init__(self) -> None:
        self._loads: list[int] = []
        self._by_load: dict[int, list[Key]] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Rooms) and (self._loads, self._by_load) == (other._loads, other._by_load)

    __hash__ = None  # type: ignore[assignment]

    def add(self, filed: Filed) -> None:
        if filed.load not in self._by_load:
            insort(self._loads, filed.load)
            self._by_load[filed.load] = []
        insort(self._by_load[filed.load], filed.room)

    def remove(self, filed: Filed) -> None:
        keys = self._by_load[filed.load]
        del keys[bisect_left(keys, filed.room)]
        if not keys:
            del self._by_load[filed.load]
            del self._loads[bisect_left(self._loads, filed.load)]

    def fitting(self, num_tokens: int, skip: Collection[str]) -> str | None:
        for load in self._loads:
            for minus_tokens, name in self._by_load[load]:
                if -minus_tokens < num_tokens:
                    break
                if name not in skip:
                    return name
        return None

    def roomiest(self, skip: Collection[str]) -> str | None:
        best: Key | None = None
        for keys in self._by_load.values():
            first = next((key for key in keys if key[1] not in skip), None)
            if first is not None and (best is None or first < best):
                best = first
        return None if best is None else best[1]
