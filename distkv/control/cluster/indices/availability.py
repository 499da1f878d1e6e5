"""Ready instances by what they have: room for requests, memory to lend. Policies look into it by `Instances`.

Amounts lie in steps of an eighth or less, so that a heartbeat that changes little moves nothing, and a move costs the
same however many instances there are. Where no more than SORTED are of one step a question finds the best, else one
that is at most that step worse, by turns. It looks at these, at what it returns or skips, at one number for each number
of requests that some instance has, which counts to `MOST_LOAD`, and at the instances of one host if it is about that.
Nothing is put in order before a question needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from random import Random

from distkv.control.cluster.indices.shelves import Shelves, by_amount, step_of
from distkv.control.cluster.policy.interface import MOST_LOAD, InstanceView

Standing = tuple[str, bool, int, int, int]
"""Where a ready instance stands: its host, whether requests wait there, its load, and less than 0 for what it has, so
that most comes first: its room in tokens, the blocks that it lends."""


Filed = tuple[Standing, int, int]
"""A standing, and the steps by which its room and what it lends are filed."""


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
        self._filed: dict[str, Filed] = {}
        self._ready: list[str] = []
        self._ready_at: dict[str, int] = {}
        self._rooms = {False: Shelves(), True: Shelves()}
        self._lendable = {False: Shelves(), True: Shelves()}
        self._hosts: dict[tuple[str, bool], dict[str, None]] = {}

    # --- what changes

    def put(self, name: str, standing: Standing | None) -> None:
        """An instance stands here from now on; nowhere if it is not ready. Among those of one step it is last where it
        has less than before."""
        if standing is None:
            self.remove(name)
            return
        filed = self._filed.get(name)
        if filed is None:
            self._begin(name, standing)
            return
        before, was_room_step, was_lends_step = filed
        if before == standing:
            return
        host_key, waits, load, room, lends = standing
        was_host_key, was_waits, was_load, was_room, was_lends = before
        room_step = was_room_step if room == was_room else step_of(room)
        lends_step = was_lends_step if lends == was_lends else step_of(lends)
        self._filed[name] = standing, room_step, lends_step
        if room_step != was_room_step or load != was_load or waits != was_waits or room > was_room:
            self._rooms[was_waits].remove(was_load, was_room_step, name)
            self._rooms[waits].add(load, room_step, name, room)
        elif room != was_room:
            self._rooms[waits].change(load, room_step, name, room)
        if lends >= 0 or was_lends >= 0 or waits != was_waits or host_key != was_host_key:
            self._lend_no_more(name, before, was_lends_step)
            self._lend(name, standing, lends_step)
        elif lends != was_lends:
            if lends_step != was_lends_step or lends > was_lends:
                self._lendable[waits].remove(0, was_lends_step, name)
                self._lendable[waits].add(0, lends_step, name, lends)
            else:
                self._lendable[waits].change(0, lends_step, name, lends)

    def remove(self, name: str) -> None:
        """An instance is not ready, or not there."""
        filed = self._filed.pop(name, None)
        if filed is not None:
            before, room_step, lends_step = filed
            self._rooms[before[1]].remove(before[2], room_step, name)
            self._lend_no_more(name, before, lends_step)
            at, last = self._ready_at.pop(name), self._ready.pop()
            if last != name:
                self._ready[at], self._ready_at[last] = last, at

    def _begin(self, name: str, standing: Standing) -> None:
        _, waits, load, room, lends = standing
        self._filed[name] = _, room_step, lends_step = standing, step_of(room), step_of(lends)
        self._ready_at[name] = len(self._ready)
        self._ready.append(name)
        self._rooms[waits].add(load, room_step, name, room)
        self._lend(name, standing, lends_step)

    def _lend(self, name: str, standing: Standing, step: int) -> None:
        host_key, waits, _, _, lends = standing
        if lends < 0:
            self._lendable[waits].add(0, step, name, lends)
            self._hosts.setdefault((host_key, waits), {})[name] = None

    def _lend_no_more(self, name: str, before: Standing, step: int) -> None:
        host_key, waits, _, _, lends = before
        if lends >= 0:
            return
        self._lendable[waits].remove(0, step, name)
        host = self._hosts[host_key, waits]
        del host[name]
        if not host:
            del self._hosts[host_key, waits]

    # --- questions

    def fitting(self, num_tokens: int, *, waiting: bool, skip: Collection[str]) -> InstanceView | None:
        name = self._rooms[waiting].fitting(-num_tokens, skip)
        return None if name is None else self.get(name)

    def roomiest(self, *, waiting: bool, skip: Collection[str]) -> InstanceView | None:
        name = self._rooms[waiting].roomiest(skip)
        return None if name is None else self.get(name)

    def able_to_lend(self, host_key: str | None, *, waiting: bool, skip: Collection[str]) -> Iterator[InstanceView]:
        if host_key is None:
            names = self._lendable[waiting].of(0)
        else:
            here = self._hosts.get((host_key, waiting), ())
            names = iter(by_amount({name: self._filed[name][0][4] for name in here}))
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
        assert (again._filed, again._hosts) == (self._filed, self._hosts), "misfiled"
        assert self._ready_at == {name: at for at, name in enumerate(self._ready)}, "the ready ones are miscounted"
        assert self._ready_at.keys() == self._filed.keys(), "others than the ready ones are drawn"
        assert all(again._lendable[waiting] == found for waiting, found in self._lendable.items()), "lendable misfiled"
        assert all(again._rooms[waiting] == rooms for waiting, rooms in self._rooms.items()), "rooms misfiled"
