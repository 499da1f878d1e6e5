"""A set of token positions, kept as ascending, disjoint, non-touching half-open ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

Range = tuple[int, int]


class Ranges:
    """What is still to be computed of a sequence: a fresh prompt is one range, a lost span another. One that decodes
    has one position at a time, so that the lowest range is two numbers and no list, of which one changes."""

    __slots__ = ("_higher", "_size", "_start")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._start = self._size = 0
        self._higher: Sequence[Range] = ()
        for start, end in ranges:
            self.add(start, end)

    def __iter__(self) -> Iterator[Range]:
        if self:
            yield self.first
            yield from self._higher

    def __bool__(self) -> bool:
        return self._size > 0

    def __len__(self) -> int:
        """Number of positions, not of ranges."""
        total = self._size
        for start, end in self._higher:
            total += end - start
        return total

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranges) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Ranges({list(self)})"

    @property
    def first(self) -> Range:
        """The lowest range; there must be one."""
        assert self, "there is no range"
        return self._start, self._start + self._size

    def is_only(self, position: int) -> bool:
        """Whether this position is in, and no other."""
        return self._start == position and self._size == 1 and not self._higher

    def advance(self, position: int, by: int) -> None:
        """In place of the only position there is comes the one that is so many further."""
        assert self.is_only(position), f"{position} is not all of {self}"
        self._start = position + by

    def add(self, start: int, end: int) -> None:
        """Add [start, end)."""
        if start >= end:
            return
        if not self:
            self._start, self._size = start, end - start
            return
        kept = []
        for a, b in self:
            if b < start or a > end:
                kept.append((a, b))
            else:
                start, end = min(a, start), max(b, end)
        kept.append((start, end))
        self._keep(sorted(kept))

    def remove(self, start: int, end: int) -> None:
        """Take [start, end) out, as far as it is in."""
        if start >= end:
            return
        if not self._higher and start <= self._start and self._start + self._size <= end:
            self._keep(())
            return
        kept = []
        for a, b in self:
            if a < min(b, start):
                kept.append((a, min(b, start)))
            if max(a, end) < b:
                kept.append((max(a, end), b))
        self._keep(kept)

    def covers(self, start: int, end: int) -> bool:
        """Whether every position of [start, end) is in."""
        return any(a <= start and end <= b for a, b in self)

    def _keep(self, ranges: Sequence[Range]) -> None:
        start, end = ranges[0] if ranges else (0, 0)
        self._start, self._size = start, end - start
        self._higher = ranges[1:]
