"""Ready instances by how much of their memory is in use and wanted: what policies that plan look into.

A change of one instance costs O(log n) comparisons; a question looks at what it returns.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from distkv.control.cluster.planning.fullness import Fullness, FullnessIndex, fullness_of
from distkv.control.cluster.policy.interface import InstanceView

Key = TypeVar("Key", int, str)


class Place(NamedTuple):
    """Where an instance is filed. batch: as one of which blocks could leave, and needs: whether its requests need more
    than it has; used: percent of its pool, as one that could lend; owes: as one that could bring home what it has
    borrowed. fullness: as in `FullnessIndex`."""

    batch: int | None = None
    needs: bool = False
    used: int | None = None
    owes: bool = False
    fullness: Fullness | None = None


NOWHERE = Place()


def place_of(view: InstanceView) -> Place:
    """Where an instance is filed by what policies see of it. One that lends is no debtor; one that owes,
    where requests wait for memory, or that wanted back what it lent, is no creditor."""
    if view.state != "ready" or not view.total_blocks:
        return NOWHERE
    needs = bool(view.waiting_sizes) or view.growing_blocks > view.free_blocks
    sends = bool(view.longest) and not view.lent_blocks
    lends = view.lendable_blocks > 0 and not (view.borrowed_blocks or view.waiting or view.wanted_back)
    used = 100 * (view.total_blocks - view.free_blocks) // view.total_blocks
    owes = view.borrowed_blocks > 0 and not view.waiting and view.running > 0
    return Place(view.running if sends else None, sends and needs, used if lends else None, owes, fullness_of(view))


class BalanceIndex:
    """The `Balance` that policies see. view, creditors_of: an instance by name, and where it has borrowed how much.
    fullness: of the instances of each host."""

    def __init__(
        self, view: Callable[[str], InstanceView | None], creditors_of: Callable[[str], Mapping[str, int]]
    ) -> None:
        self.get = view
        self.creditors_of = creditors_of
        self.fullness = FullnessIndex()
        self._places: dict[str, Place] = {}
        self._debtors: dict[bool, list[tuple[int, str]]] = {True: [], False: []}
        self._used: list[tuple[int, str]] = []
        self._owing: list[str] = []

    def put(self, name: str, place: Place) -> None:
        """An instance is filed here from now on."""
        before = self._places.get(name, NOWHERE)
        if place == before:
            return
        if place == NOWHERE:
            del self._places[name]
        else:
            self._places[name] = place
        for needs, filed in self._debtors.items():
            was, now = (one.batch if one.needs is needs else None for one in (before, place))
            _refile(filed, name, was, now)
        _refile(self._used, name, before.used, place.used)
        self.fullness.put(name, place.fullness)
        if before.owes and not place.owes:
            del self._owing[bisect_left(self._owing, name)]
        elif place.owes and not before.owes:
            insort(self._owing, name)

    def debtors(self, after: tuple[int, str] | None, *, needs: bool) -> Iterator[InstanceView]:
        filed = self._debtors[needs]
        first = 0 if after is None else bisect_right(filed, after)
        return self._views(name for _, name in filed[first : first + MOST_READ])

    def owing(self, after: str) -> Iterator[InstanceView]:
        first = bisect_right(self._owing, after)
        return self._views(iter(self._owing[first : first + MOST_READ]))

    def least_used(self) -> Iterator[InstanceView]:
        return self._views(name for _, name in self._used[:MOST_READ])

    def _views(self, names: Iterator[str]) -> Iterator[InstanceView]:
        return (view for name in names if (view := self.get(name)) is not None)

    def validate(self, views: Iterator[InstanceView]) -> None:
        """Everything is filed where its view says, and nothing else is."""
        again, everybody = BalanceIndex(self.get, self.creditors_of), list(views)
        for view in everybody:
            again.put(view.instance_id, place_of(view))
        assert again._places == self._places, "filed at another place"
        mine = self._debtors, self._used, self._owing
        assert mine == (again._debtors, again._used, again._owing), "misfiled"
        self.fullness.validate(iter(everybody))


MOST_READ = 256
"""Of one index, at one look."""


def _refile(filed: list[tuple[int, str]], name: str, before: int | None, now: int | None) -> None:
    if before == now:
        return
    if before is not None:
        del filed[bisect_left(filed, (before, name))]
    if now is not None:
        insort(filed, (now, name))
