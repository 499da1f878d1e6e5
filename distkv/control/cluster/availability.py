"""Ready instances by what they have: room for requests, memory to lend. Policies look into it by `Instances`.

Amounts lie in steps of an eighth or less, so that a heartbeat that changes little moves nothing, and a move costs the
same however many instances there are. Where no more than SORTED are of one step a question finds the best, else one
that is at most that step worse, by turns. It looks at these, at what it returns or skips, at one number for each number
of requests that some instance has, which counts to `MOST_LOAD`, and at the instances of one host if it is about that.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from random import Random

from distkv.control.cluster.policy.interface import MOST_LOAD, InstanceView

Standing = tuple[str, bool, int, int, int]
"""Where a ready instance stands: its host, whether requests wait there, its load, and less than 0 for what it has, so
that most comes first: its room in tokens, the blocks that it lends."""
SORTED = 64
"""So many whose amounts are of one step are put in order when a question comes to them; more are not."""
MOST_PASSED = 512
"""So many that have a little less than is wanted are passed over to find one that has enough among them."""
STEPS = 8
"""Amounts lie together in so many steps from one power of two to the next; up to twice as many they lie alone."""

_BITS = (2 * STEPS).bit_length() - 1


def step_of(amount: int) -> int:
    """The step of an amount: the larger that is, the larger."""
    if amount < 0:
        return -step_of(-amount)
    more = amount.bit_length() - _BITS
    return amount if more <= 0 else (more << _BITS - 1) + (amount >> more)


def standing_of(view: InstanceView) -> Standing | None:
    """Where an instance stands by what policies see of it; None if it is not ready."""
    if view.state != "ready":
        return None
    return view.host_key, view.waiting > 0, min(view.load, MOST_LOAD), -view.room_tokens, -view.lendable_blocks


class Availability:
    """The `Instances` that policies see. view, views: one of them by name, and all. lent: see `Instances`."""

    def __init__(
        self,
        view: Callable[[str], InstanceView | None],
        views: Callable[[], Iterator[InstanceView]],
        lent: Callable[[str, str], int] = lambda creditor_id, debtor_id: 0,
    ) -> None:
        self.get = view
        self.all = views
        self.lent = lent
        self._standings: dict[str, Standing] = {}
        self._ready: list[str] = []
        self._ready_at: dict[str, int] = {}
        self._rooms = {False: _Shelves(self._room), True: _Shelves(self._room)}
        self._lenders = {False: _Shelves(self._lends), True: _Shelves(self._lends)}
        self._hosts: dict[tuple[str, bool], dict[str, None]] = {}

    # --- what changes

    def put(self, name: str, standing: Standing | None) -> None:
        """An instance stands here from now on; nowhere if it is not ready. Among those of one step it is last where it
        has less than before."""
        if standing is None:
            self.remove(name)
            return
        before = self._standings.get(name)
        if before == standing:
            return
        self._standings[name] = standing
        _, waits, load, room, lends = standing
        step = step_of(room)
        if before is None:
            self._ready_at[name] = len(self._ready)
            self._ready.append(name)
            self._rooms[waits].add(load, step, name)
            self._lend(standing, name)
            return
        was_at = step_of(before[3])
        if step != was_at or load != before[2] or waits != before[1] or room > before[3]:
            self._rooms[before[1]].remove(before[2], was_at, name)
            self._rooms[waits].add(load, step, name)
        if before[:2] != standing[:2] or lends >= 0 or before[4] >= 0:
            self._lend_no_more(before, name)
            self._lend(standing, name)
        elif (step := step_of(lends)) != (was_at := step_of(before[4])) or lends > before[4]:
            self._lenders[waits].remove(0, was_at, name)
            self._lenders[waits].add(0, step, name)

    def remove(self, name: str) -> None:
        """An instance is not ready, or not there."""
        before = self._standings.pop(name, None)
        if before is not None:
            self._rooms[before[1]].remove(before[2], step_of(before[3]), name)
            self._lend_no_more(before, name)
            at, last = self._ready_at.pop(name), self._ready.pop()
            if last != name:
                self._ready[at], self._ready_at[last] = last, at

    def _lend(self, standing: Standing, name: str) -> None:
        if standing[4] < 0:
            self._lenders[standing[1]].add(0, step_of(standing[4]), name)
            self._hosts.setdefault(standing[:2], {})[name] = None

    def _lend_no_more(self, before: Standing, name: str) -> None:
        if before[4] >= 0:
            return
        self._lenders[before[1]].remove(0, step_of(before[4]), name)
        host = self._hosts[before[:2]]
        del host[name]
        if not host:
            del self._hosts[before[:2]]

    def _room(self, name: str) -> int:
        return self._standings[name][3]

    def _lends(self, name: str) -> int:
        return self._standings[name][4]

    # --- questions

    def fitting(self, num_tokens: int, *, waiting: bool, skip: Collection[str]) -> InstanceView | None:
        name = self._rooms[waiting].fitting(num_tokens, skip)
        return None if name is None else self.get(name)

    def roomiest(self, *, waiting: bool, skip: Collection[str]) -> InstanceView | None:
        name = self._rooms[waiting].roomiest(skip)
        return None if name is None else self.get(name)

    def lenders(self, host_key: str | None, *, waiting: bool, skip: Collection[str]) -> Iterator[InstanceView]:
        if host_key is None:
            names = self._lenders[waiting].of(0)
        else:
            names = iter(by_amount(self._hosts.get((host_key, waiting), ()), self._lends))
        for name in names:
            if name not in skip and (view := self.get(name)) is not None:
                yield view

    def drawn(self, most: int, some: int, entropy: Random, *, skip: Collection[str]) -> Iterator[InstanceView]:
        names = self._ready if len(self._ready) <= most else entropy.choices(self._ready, k=some)
        for name in names:
            if name not in skip and (view := self.get(name)) is not None:
                yield view

    def validate(self) -> None:
        """Everything stands where its view says, and nothing else does."""
        again = Availability(self.get, self.all)
        for view in self.all():
            again.put(view.instance_id, standing_of(view))
        assert (again._standings, again._hosts) == (self._standings, self._hosts), "misfiled"
        assert self._ready_at == {name: at for at, name in enumerate(self._ready)}, "the ready ones are miscounted"
        assert self._ready_at.keys() == self._standings.keys(), "others than the ready ones are drawn"
        assert all(again._lenders[waiting] == lenders for waiting, lenders in self._lenders.items()), "lenders misfiled"
        assert all(again._rooms[waiting] == rooms for waiting, rooms in self._rooms.items()), "rooms misfiled"


class _Shelves:
    """Names on numbered shelves, on each by the step of an amount, smallest first: by load what room instances have, or
    all by what they lend. Those of one step lie as they came. exact: the amount of a name."""

    def __init__(self, exact: Callable[[str], int]) -> None:
        self._exact = exact
        self._numbers: list[int] = []
        self._shelves: dict[int, tuple[list[int], dict[int, dict[str, None]]]] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shelves) and (self._numbers, self._shelves) == (other._numbers, other._shelves)

    __hash__ = None  # type: ignore[assignment]

    def add(self, number: int, step: int, name: str) -> None:
        shelf = self._shelves.get(number)
        if shelf is None:
            insort(self._numbers, number)
            self._shelves[number] = [step], {step: {name: None}}
            return
        steps, names = shelf
        alike = names.get(step)
        if alike is None:
            insort(steps, step)
            names[step] = {name: None}
        else:
            alike[name] = None

    def remove(self, number: int, step: int, name: str) -> None:
        steps, names = self._shelves[number]
        alike = names[step]
        del alike[name]
        if alike:
            return
        del names[step]
        del steps[bisect_left(steps, step)]
        if not steps:
            del self._shelves[number]
            del self._numbers[bisect_left(self._numbers, number)]

    def of(self, number: int) -> Iterator[str]:
        """The names of a shelf, by step; of one step by exact amount and name, if they are no more than SORTED."""
        steps, names = self._shelves.get(number) or ([], {})
        for step in steps:
            alike = names[step]
            yield from by_amount(alike, self._exact) if 1 < len(alike) <= SORTED else alike

    def fitting(self, num_tokens: int, skip: Collection[str]) -> str | None:
        """Of the step in which some have enough and some too little it passes MOST_PASSED that have too little."""
        least, passed = step_of(-num_tokens), 0
        for load in self._numbers:
            first = self._shelves[load][0][0]
            if first > least or (first == least and passed >= MOST_PASSED):
                continue
            for name in self.of(load):
                if self._exact(name) <= -num_tokens:
                    if name not in skip:
                        return name
                elif (passed := passed + 1) >= MOST_PASSED or step_of(self._exact(name)) > least:
                    break
        return None

    def roomiest(self, skip: Collection[str]) -> str | None:
        step = min((steps[0] for steps, _ in self._shelves.values()), default=None)
        while step is not None:
            alike = (name for _, names in self._shelves.values() for name in names.get(step, ()) if name not in skip)
            if some := by_amount(islice(alike, SORTED), self._exact):
                return some[0]
            ends = ((steps, bisect_right(steps, step)) for steps, _ in self._shelves.values())
            step = min((steps[at] for steps, at in ends if at < len(steps)), default=None)
        return None


def by_amount(names: Iterable[str], exact: Callable[[str], int]) -> list[str]:
    """The smallest amount first, equal ones by name."""
    return [name for _, name in sorted((exact(name), name) for name in names)]
