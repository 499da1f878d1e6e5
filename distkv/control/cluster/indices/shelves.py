"""Names on numbered shelves, on each by the step of an amount. Amounts are less than 0, so that most comes first."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterator
from itertools import islice

SORTED = 64
"""So many whose amounts are of one step are put in order when a question comes to them; more are not."""
MOST_PASSED = 512
"""So many that have a little less than is wanted are passed over to find one that has enough among them."""
STEPS = 8
"""Amounts lie together in so many steps from one power of two to the next; up to twice as many they lie alone."""

_BITS = (2 * STEPS).bit_length() - 1

Alike = dict[str, int]
"""Those of one step, as they came, and what each has exactly."""


def step_of(amount: int) -> int:
    """The step of an amount: the larger that is, the larger."""
    size = -amount if amount < 0 else amount
    more = size.bit_length() - _BITS
    if more > 0:
        size = (more << _BITS - 1) + (size >> more)
    return -size if amount < 0 else size


class Shelves:
    """By load what room instances have, or all on one shelf by what they lend. To put a name in its place costs the
    same however many there are."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._shelves: dict[int, tuple[list[int], dict[int, Alike]]] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shelves) and (self._numbers, self._shelves) == (other._numbers, other._shelves)

    __hash__ = None  # type: ignore[assignment]

    # --- what changes

    def add(self, number: int, step: int, name: str, amount: int) -> None:
        """A name comes to this shelf, as the last of its step."""
        shelf = self._shelves.get(number)
        if shelf is None:
            insort(self._numbers, number)
            self._shelves[number] = [step], {step: {name: amount}}
            return
        steps, cells = shelf
        alike = cells.get(step)
        if alike is None:
            insort(steps, step)
            cells[step] = {name: amount}
        else:
            alike[name] = amount

    def change(self, number: int, step: int, name: str, amount: int) -> None:
        """A name has another amount of the same step now, and keeps its turn."""
        self._shelves[number][1][step][name] = amount

    def remove(self, number: int, step: int, name: str) -> None:
        """A name goes."""
        steps, cells = self._shelves[number]
        alike = cells[step]
        del alike[name]
        if alike:
            return
        del cells[step]
        del steps[bisect_left(steps, step)]
        if not steps:
            del self._shelves[number]
            del self._numbers[bisect_left(self._numbers, number)]

    # --- questions

    def of(self, number: int) -> Iterator[str]:
        """The names of a shelf, by step; of one step by exact amount and name, if they are no more than SORTED."""
        steps, cells = self._shelves.get(number) or ([], {})
        for step in steps:
            alike = cells[step]
            if len(alike) > SORTED:
                yield from alike
                continue
            first = _least(alike)
            yield first
            if len(alike) > 1:
                yield from (name for name in by_amount(alike) if name != first)

    def fitting(self, amount: int, skip: Collection[str]) -> str | None:
        """A name on the first shelf that has one with so much, there one with most. Of the step in which some have
        enough and some too little it looks at MOST_PASSED."""
        least, passed = step_of(amount), 0
        for number in self._numbers:
            steps, cells = self._shelves[number]
            for step in steps:
                if step > least or (step == least and passed >= MOST_PASSED):
                    break
                alike = cells[step]
                if step < least:
                    name = _first(alike, skip)
                else:
                    name = _enough(alike, amount, skip, MOST_PASSED - passed)
                    passed += len(alike)
                if name is not None:
                    return name
        return None

    def roomiest(self, skip: Collection[str]) -> str | None:
        """A name with most, on whatever shelf."""
        step = min((steps[0] for steps, _ in self._shelves.values()), default=None)
        while step is not None:
            cells = [cells[step] for _, cells in self._shelves.values() if step in cells]
            some = islice(((has, name) for alike in cells for name, has in alike.items() if name not in skip), SORTED)
            if (found := min(some, default=None)) is not None:
                return found[1]
            ends = ((steps, bisect_right(steps, step)) for steps, _ in self._shelves.values())
            step = min((steps[at] for steps, at in ends if at < len(steps)), default=None)
        return None


def by_amount(amounts: Alike) -> list[str]:
    """The smallest amount first, equal ones by name."""
    return [name for _, name in sorted(zip(amounts.values(), amounts, strict=True))]


def _least(alike: Alike) -> str:
    return min(zip(alike.values(), alike, strict=True))[1]


def _first(alike: Alike, skip: Collection[str]) -> str | None:
    """The first of them by amount and name if they are no more than SORTED, else of those as they came."""
    if len(alike) > SORTED:
        return next((name for name in alike if name not in skip), None)
    name = _least(alike)
    if name not in skip:
        return name
    return min(((has, name) for name, has in alike.items() if name not in skip), default=(0, None))[1]


def _enough(alike: Alike, amount: int, skip: Collection[str], most: int) -> str | None:
    """As `_first`, of those among the first `most` that have so much."""
    if len(alike) > SORTED:
        some = islice(alike.items(), most)
        return next((name for name, has in some if has <= amount and name not in skip), None)
    if min(alike.values()) > amount:
        return None
    name = _first(alike, skip)
    return name if name is not None and alike[name] <= amount else None
