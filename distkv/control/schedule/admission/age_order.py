"""Sequences oldest first."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from distkv.control.request.sequence import Sequence


class AgeOrder:
    """A set of sequences in the order of their age. Adding and removing compare O(log n)."""

    __slots__ = ("_ages", "_seqs")

    def __init__(self) -> None:
        self._ages: list[tuple[float, str]] = []
        self._seqs: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._seqs)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._seqs)

    def __contains__(self, seq: Sequence) -> bool:
        at = bisect_left(self._ages, seq.age)
        return at < len(self._seqs) and self._seqs[at] is seq

    @property
    def oldest(self) -> Sequence | None:
        return self._seqs[0] if self._seqs else None

    @property
    def youngest(self) -> Sequence | None:
        return self._seqs[-1] if self._seqs else None

    def add(self, seq: Sequence) -> None:
        """Let it be one of them; it is not yet."""
        at = bisect_left(self._ages, seq.age)
        self._ages.insert(at, seq.age)
        self._seqs.insert(at, seq)

    def remove(self, seq: Sequence) -> None:
        """Let it be one of them no longer; it is."""
        at = bisect_left(self._ages, seq.age)
        assert self._seqs[at] is seq, f"{seq.request_id} is not filed under its age"
        del self._ages[at], self._seqs[at]
