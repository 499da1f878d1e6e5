"""Ready instances by what they have: room for requests, memory to lend. Policies look into it by `Instances`.

A change of one instance costs O(log n) comparisons; a question looks at what it returns or skips, and at one instance
for each number of requests that some instance has, which counts to `MOST_LOAD`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator

from distkv.control.cluster.policy.interface import MOST_LOAD, InstanceView

Standing = tuple[str, bool, int, int, int]
"""Where a ready instance stands: its host, whether requests wait there, its load, and less than 0 for what it has, so
that most comes first: its room in tokens, the blocks that it lends."""
_ROOM, _LENDS = slice(1, 4), slice(0, 5, 4)
LEND_STEP_BLOCKS = 256
"""Lenders lie together by so many blocks, so that each such list is short."""


def standing_of(view: InstanceView) -> Standing | None:
    """Where an instance stands by what policies see of it; None if it is not ready."""
    if view.state != "ready":
        return None
    return view.host_key, view.waiting > 0, min(view.load, MOST_LOAD), -view.free_tokens, -view.lendable_blocks


class Availability:
    """The `Instances` that policies see. view, views: one of them by name, and all."""

    def __init__(self, view: Callable[[str], InstanceView | None], views: Callable[[], Iterator[InstanceView]]) -> None:
        self.get = view
        self.all = views
        self._standings: dict[str, Standing] = {}
        self._rooms = {False: _Shelves(), True: _Shelves()}
        self._lenders = _Shelves()
        self._hosts: dict[str, list[tuple[int, str]]] = {}

    # --- what changes

    def put(self, name: str, standing: Standing | None) -> None:
        """An instance stands here from now on; nowhere if it is not ready."""
        if standing is None:
            self.remove(name)
            return
        before = self._standings.get(name)
        if before == standing:
            return
        self._standings[name] = standing
        if before is None or before[_ROOM] != standing[_ROOM]:
            if before is not None:
                self._rooms[before[1]].remove(before[2], before[3], name)
            self._rooms[standing[1]].add(standing[2], standing[3], name)
        if before is None or before[_LENDS] != standing[_LENDS]:
            if before is not None:
                self._lend_no_more(before, name)
            if (lends := standing[4]) < 0:
                self._lenders.add(lends // LEND_STEP_BLOCKS, lends, name)
                insort(self._hosts.setdefault(standing[0], []), (lends, name))

    def remove(self, name: str) -> None:
        """An instance is not ready, or not there."""
        before = self._standings.pop(name, None)
        if before is not None:
            self._rooms[before[1]].remove(before[2], before[3], name)
            self._lend_no_more(before, name)

    def _lend_no_more(self, before: Standing, name: str) -> None:
        lends = before[4]
        if lends >= 0:
            return
        self._lenders.remove(lends // LEND_STEP_BLOCKS, lends, name)
        host = self._hosts[before[0]]
        del host[bisect_left(host, (lends, name))]
        if not host:
            del self._hosts[before[0]]

    # --- questions

    def fitting(self, num_tokens: int, *, waiting: bool, skip: Collection[str]) -> InstanceView | None:
        name = self._rooms[waiting].fitting(num_tokens, skip)
        return None if name is None else self.get(name)

    def roomiest(self, *, waiting: bool, skip: Collection[str]) -> InstanceView | None:
        name = self._rooms[waiting].roomiest(skip)
        return None if name is None else self.get(name)

    def lenders(self, host_key: str | None, *, skip: Collection[str]) -> Iterator[InstanceView]:
        names = self._lenders.all() if host_key is None else (name for _, name in self._hosts.get(host_key, ()))
        for name in names:
            if name not in skip and (view := self.get(name)) is not None:
                yield view

    def validate(self) -> None:
        """Everything stands where its view says, and nothing else does."""
        again = Availability(self.get, self.all)
        for view in self.all():
            again.put(view.instance_id, standing_of(view))
        assert (again._standings, again._hosts) == (self._standings, self._hosts), "misfiled"
        assert again._lenders == self._lenders, "lenders misfiled"
        assert all(again._rooms[waiting] == rooms for waiting, rooms in self._rooms.items()), "rooms misfiled"


class _Shelves:
    """Names on numbered shelves, on each by an amount, and equal ones by name: by load what room instances have, or
    what they lend by that, roughly. Amounts lie apart from names, since most of the time goes into comparing them."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._shelves: dict[int, tuple[list[int], dict[int, list[str]]]] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shelves) and (self._numbers, self._shelves) == (other._numbers, other._shelves)

    __hash__ = None  # type: ignore[assignment]

    def add(self, number: int, amount: int, name: str) -> None:
        shelf = self._shelves.get(number)
        if shelf is None:
            insort(self._numbers, number)
            self._shelves[number] = [amount], {amount: [name]}
            return
        amounts, names = shelf
        equal = names.get(amount)
        if equal is None:
            insort(amounts, amount)
            names[amount] = [name]
        else:
            insort(equal, name)

    def remove(self, number: int, amount: int, name: str) -> None:
        amounts, names = self._shelves[number]
        equal = names[amount]
        del equal[bisect_left(equal, name)]
        if equal:
            return
        del names[amount]
        del amounts[bisect_left(amounts, amount)]
        if not amounts:
            del self._shelves[number]
            del self._numbers[bisect_left(self._numbers, number)]

    def all(self) -> Iterator[str]:
        """The names of the first shelf, then of the next."""
        for number in self._numbers:
            amounts, names = self._shelves[number]
            for amount in amounts:
                yield from names[amount]

    def fitting(self, num_tokens: int, skip: Collection[str]) -> str | None:
        for load in self._numbers:
            amounts, names = self._shelves[load]
            for minus_tokens in amounts:
                if -minus_tokens < num_tokens:
                    break
                for name in names[minus_tokens]:
                    if name not in skip:
                        return name
        return None

    def roomiest(self, skip: Collection[str]) -> str | None:
        best: tuple[int, str] | None = None
        for amounts, names in self._shelves.values():
            first = next(((amount, name) for amount in amounts for name in names[amount] if name not in skip), None)
            if first is not None and (best is None or first < best):
                best = first
        return None if best is None else best[1]
