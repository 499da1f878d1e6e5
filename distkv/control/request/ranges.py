"""A set of token positions, kept as ascending, disjoint, non-touching half-open ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class Ranges:
    """What is still to be computed of a sequence: a fresh prompt is one range, a lost span another."""

    __slots__ = ("_ranges",)

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._ranges: list[tuple[int, int]] = []
        for start, end in ranges:
            self.add(start, end)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._ranges)

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def __len__(self) -> int:
        """Number of positions, not of ranges."""
        total = 0
        for start, end in self._ranges:
            total += end - start
        return total

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranges) and self._ranges == other._ranges

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Ranges({self._ranges})"

    @property
    def first(self) -> tuple[int, int]:
        """The lowest range; there must be one."""
        return self._ranges[0]

    def is_only(self, position: int) -> bool:
        """Whether this position is in, and no other."""
        return self._ranges == [(position, position + 1)]

    def advance(self, position: int, by: int) -> None:
        """In place of the only position there is comes the one that is so many further."""
        assert self._ranges == [(position, position + 1)], f"{position} is not all of {self._ranges}"
        self._ranges[0] = position + by, position + by + 1

    def add(self, start: int, end: int) -> None:
        """Add [start, end)."""
        if start >= end:
            return
        if not self._ranges:
            self._ranges.append((start, end))
            return
        kept = []
        for a, b in self._ranges:
            if b < start or a > end:
                kept.append((a, b))
            else:
                start, end = min(a, start), max(b, end)
        kept.append((start, end))
        self._ranges = sorted(kept)

    def remove(self, start: int, end: int) -> None:
        """Take [start, end) out, as far as it is in."""
        if start >= end:
            return
        if self._ranges == [(start, end)]:
            self._ranges.clear()
            return
        kept = []
        for a, b in self._ranges:
            if a < min(b, start):
                kept.append((a, min(b, start)))
            if max(a, end) < b:
                kept.append((max(a, end), b))
        self._ranges = kept

    def covers(self, start: int, end: int) -> bool:
        """Whether every position of [start, end) is in."""
        return any(a <= start and end <= b for a, b in self._ranges)
