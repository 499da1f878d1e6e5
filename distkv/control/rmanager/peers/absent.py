"""Peers that are known here and not in the member list that is followed: when to ask them whether they are there."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

MOST_ASKED = 8
ASK_EVERY_S = 1.0
"""So many are asked at once, and the next after so long. A gManager that restarted may lack thousands for a while, and
each peer that is asked costs a connection."""


class Absent:
    """Names of such peers; whoever is named by a list again is none."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._unasked: dict[str, None] = {}
        self._ask_at = -math.inf

    def __contains__(self, instance_id: str) -> bool:
        return instance_id in self._names

    def ask_from(self, at: float) -> None:
        """Ask nobody before `at`: by then a gManager that was not heard before lists all that live."""
        self._ask_at = at

    def add(self, instance_id: str) -> None:
        """A list lacks it: it is to be asked once."""
        self._names.add(instance_id)
        self._unasked[instance_id] = None

    def named(self, instance_ids: Iterable[str]) -> None:
        """A list has these."""
        for instance_id in instance_ids:
            self.drop(instance_id)

    def drop(self, instance_id: str) -> None:
        """It is listed, or not known here any more."""
        self._names.discard(instance_id)
        self._unasked.pop(instance_id, None)

    def take_due(self, now: float) -> list[str]:
        """Those to ask now."""
        if now < self.next_deadline():
            return []
        due = list(self._unasked)[:MOST_ASKED]
        for instance_id in due:
            del self._unasked[instance_id]
        self._ask_at = now + ASK_EVERY_S
        return due

    def next_deadline(self) -> float:
        """When `take_due` has somebody."""
        return self._ask_at if self._unasked else math.inf

    def validate(self, known: Collection[str]) -> None:
        """Nobody is here who is not known."""
        assert self._unasked.keys() <= self._names and all(name in known for name in self._names)
