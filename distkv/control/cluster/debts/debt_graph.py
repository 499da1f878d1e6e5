"""Who has borrowed from whom (000 §4.5, Fig. 5): a directed graph, debtor → creditor, and the cycles in it.

An edge is a *suspect* while it may be on a cycle. An edge that is new, or that has grown to the least size that counts,
is one; it is none any more once a search from its creditor has not come back to its debtor. So every cycle has a
suspect on it: its youngest edge, or one of those searched since. Algorithm 1 as printed searches an undirected graph;
here edges are followed one way only, and a cycle of two is one.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter

from distkv.wire.messages.to_gmanager import Debtor

Edge = tuple[str, str]
"""A debtor and its creditor."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """Each of `members` owes the next at least `num_blocks`, and the last one the first. No member comes twice."""

    members: tuple[str, ...]
    num_blocks: int

    @property
    def frees(self) -> int:
        """rBlocks that come home when it is swapped."""
        return self.num_blocks * len(self.members)

    def edges(self) -> list[Edge]:
        """Debtor and creditor of each debt in it."""
        return list(zip(self.members, (*self.members[1:], self.members[0]), strict=True))


@dataclass(slots=True)
class Search:
    """The widest path from the creditor of `edge` to its debtor, as far as it was looked for.

    heap: (- least edge so far, edges so far, member); came_by: the member before. was_blocked: some may not be passed
    now, so that it proves nothing when none is found.
    """

    edge: Edge
    heap: list[tuple[int, int, str]]
    width: dict[str, int]
    came_by: dict[str, str] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    was_blocked: bool = False


class DebtGraph:
    """Built from what creditors report. Debts of fewer than `least_blocks`, and those of or to instances that cannot
    swap, are known, and are on no cycle."""

    def __init__(self, least_blocks: int) -> None:
        self._least_blocks = max(1, least_blocks)
        self._owed: dict[str, dict[str, int]] = {}
        self._lent: dict[str, dict[str, int]] = {}
        self._suspects: OrderedDict[Edge, None] = OrderedDict()
        self._left_out: set[str] = set()
        self._search: Search | None = None

    @property
    def is_suspicious(self) -> bool:
        """Whether there may be a cycle."""
        return bool(self._suspects)

    def owed(self, debtor: str, creditor: str) -> int:
        """rBlocks that one has borrowed from the other."""
        return self._owed.get(debtor, {}).get(creditor, 0)

    def creditors_of(self, debtor: str) -> Mapping[str, int]:
        """Where an instance has borrowed, and how many rBlocks."""
        return self._owed.get(debtor, {})

    def debts(self) -> dict[Edge, int]:
        """All of them."""
        return {(debtor, creditor): n for debtor, owed in self._owed.items() for creditor, n in owed.items()}

    def leave_out(self, instance_id: str, *, is_left_out: bool) -> None:
        """Whether an instance cannot swap. Costs what it owes and lends, where that has changed."""
        if is_left_out == (instance_id in self._left_out):
            return
        (self._left_out.add if is_left_out else self._left_out.discard)(instance_id)
        owed = ((instance_id, creditor) for creditor in self._owed.get(instance_id, ()))
        lent = ((debtor, instance_id) for debtor in self._lent.get(instance_id, ()))
        for edge in (*owed, *lent):
            if self._may_swap(edge):
                self._suspects[edge] = None
            else:
                self._suspects.pop(edge, None)

    def update(self, creditor: str, debtors: Iterable[Debtor]) -> None:
        """All that a creditor has lent now. Costs what it lends and lent before."""
        lent = {one.instance_id: one.num_blocks for one in debtors if one.num_blocks and one.instance_id != creditor}
        before = self._lent.get(creditor, {})
        for debtor in before.keys() - lent.keys():
            self._suspects.pop((debtor, creditor), None)
            owed = self._owed[debtor]
            del owed[creditor]
            if not owed:
                del self._owed[debtor]
        for debtor, num_blocks in lent.items():
            self._owed.setdefault(debtor, {})[creditor] = num_blocks
            if not self._may_swap((debtor, creditor)):
                self._suspects.pop((debtor, creditor), None)
            elif before.get(debtor, 0) < self._least_blocks:
                self._suspects[debtor, creditor] = None
        if lent:
            self._lent[creditor] = lent
        else:
            self._lent.pop(creditor, None)

    def cycles(self, most_looks: int, is_free: Callable[[str], bool]) -> list[Cycle]:
        """Cycles of free members: through each suspect one whose smallest debt is as large as can be; those that free
        most first. Looks at about `most_looks` edges, and goes on from there the next time."""
        found: dict[tuple[str, ...], Cycle] = {}
        looks = 0
        for _ in range(len(self._suspects)):
            search = self._search or self._begin(next(iter(self._suspects)), is_free)
            self._search = search
            while search.heap and search.edge[0] not in search.done and looks < most_looks:
                looks += self._step(search, is_free)
            is_found = search.edge[0] in search.done
            if search.heap and not is_found:
                break
            self._search = None
            looks += 1
            is_suspect = search.edge in self._suspects
            if is_suspect:
                del self._suspects[search.edge]  # it comes last from now on, or not at all
            if is_suspect and (is_found or search.was_blocked):
                self._suspects[search.edge] = None
            if is_found and (cycle := self._cycle(search, is_free)) is not None:
                found[cycle.members] = cycle
            if looks >= most_looks or not self._suspects:
                break
        return sorted(found.values(), key=lambda cycle: (-cycle.frees, cycle.members))

    def _begin(self, edge: Edge, is_free: Callable[[str], bool]) -> Search:
        debtor, creditor = edge
        width = self.owed(debtor, creditor)
        search = Search(edge, [(-width, 1, creditor)], {creditor: width})
        if not (is_free(debtor) and is_free(creditor)):
            search.heap, search.was_blocked = [], True
        return search

    def _step(self, search: Search, is_free: Callable[[str], bool]) -> int:
        """Go on from the member that the widest path leads to; returns how many edges were looked at."""
        minus_width, length, member = heapq.heappop(search.heap)
        if member in search.done:
            return 1
        search.done.add(member)
        edges = self._owed.get(member, {})
        for creditor, num_blocks in edges.items():
            width = min(-minus_width, num_blocks)
            if width < self._least_blocks or creditor in search.done or width <= search.width.get(creditor, 0):
                continue
            if creditor in self._left_out:
                continue
            if not is_free(creditor):
                search.was_blocked = True
                continue
            search.width[creditor], search.came_by[creditor] = width, member
            heapq.heappush(search.heap, (-width, length + 1, creditor))
        return 1 + len(edges)

    def _cycle(self, search: Search, is_free: Callable[[str], bool]) -> Cycle | None:
        """What a search has found, if it is still there: the graph may have changed meanwhile."""
        debtor, creditor = search.edge
        path, member = [], debtor
        while member != creditor:
            member = search.came_by[member]
            path.append(member)
        members = [debtor, *reversed(path)]
        first = members.index(min(members))
        cycle = Cycle((*members[first:], *members[:first]), 0)
        num_blocks = min(self.owed(*edge) for edge in cycle.edges())
        if not all(map(self._may_swap, cycle.edges())) or not all(map(is_free, cycle.members)):
            return None
        return Cycle(cycle.members, num_blocks)

    def _may_swap(self, edge: Edge) -> bool:
        """Whether a debt is large enough to count, and between two that can swap."""
        return self.owed(*edge) >= self._least_blocks and self._left_out.isdisjoint(edge)

    def validate(self) -> None:
        """Both ways of looking at it agree; no cycle is without a suspect."""
        owed = self.debts()
        assert owed == {(d, c): n for c, debtors in self._lent.items() for d, n in debtors.items()}, "debts disagree"
        assert all(self._owed.values()) and all(self._lent.values()), "an instance without debts is kept"
        assert all(n > 0 and d != c for (d, c), n in owed.items())
        assert all(map(self._may_swap, self._suspects)), "a debt that cannot be swapped is suspect"
        sure: dict[str, list[str]] = {}
        for debtor, creditor in owed:
            if self._may_swap((debtor, creditor)) and (debtor, creditor) not in self._suspects:
                sure.setdefault(debtor, []).append(creditor)
        TopologicalSorter(sure).prepare()  # raises CycleError
