"""Sequences oldest first."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from distkv.control.request.sequence import Sequence


class AgeOrder:
    """A set of sequences in the order of their age. Adding and removing compare O(log n)."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[tuple[float, str, Sequence]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Sequence]:
        return (entry[2] for entry in self._entries)

    def __contains__(self, seq: Sequence) -> bool:
        at = bisect_left(self._entries, seq.age)
        return at < len(self._entries) and self._entries[at][2] is seq

    @property
    def oldest(self) -> Sequence | None:
        return self._entries[0][2] if self._entries else None

    @property
    def youngest(self) -> Sequence | None:
        return self._entries[-1][2] if self._entries else None

    def add(self, seq: Sequence) -> None:
        """Let it be one of them; it is not yet."""
        insort(self._entries, (*seq.age, seq))

    def remove(self, seq: Sequence) -> None:
        """Let it be one of them no longer; it is."""
        at = bisect_left(self._entries, seq.age)
        assert self._entries[at][2] is seq, f"{seq.request_id} is not filed under its age"
        del self._entries[at]
