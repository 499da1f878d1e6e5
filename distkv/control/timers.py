"""When each of many things is due: set, moved and taken in O(log n), however many there are."""

from __future__ import annotations

import heapq
import math
import sys
from typing import Generic, TypeVar

K = TypeVar("K", bound=str | bytes | int | tuple[str, ...])


class Timers(Generic[K]):
    """One point in time per key, on the clock of whoever sets them."""

    def __init__(self) -> None:
        self._at: dict[K, float] = {}
        self._heap: list[tuple[float, K]] = []  # holds each key at its time; what does not agree with `_at` is void

    def __contains__(self, key: K) -> bool:
        return key in self._at

    def set(self, key: K, at: float) -> None:
        """The key is due at `at`, and no other time."""
        if self._at.get(key) != at:
            self._at[key] = at
            heapq.heappush(self._heap, (at, key))
            if len(self._heap) > 2 * len(self._at) + 8:
                self._heap = [(when, one) for one, when in self._at.items()]
                heapq.heapify(self._heap)

    def bring_forward(self, key: K, at: float) -> None:
        """The key is due at `at`, or earlier if it was."""
        self.set(key, min(at, self._at.get(key, math.inf)))

    def cancel(self, key: K) -> None:
        """The key is due no more."""
        self._at.pop(key, None)

    def take_due(self, now: float, most: int = sys.maxsize) -> list[K]:
        """The keys that are due, earliest first, at most so many; they are due no more."""
        due: list[K] = []
        while len(due) < most and self.next_at() <= now:
            _, key = heapq.heappop(self._heap)
            del self._at[key]
            due.append(key)
        return due

    def next_at(self) -> float:
        """When the first is due; infinity if there is none."""
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def validate(self) -> None:
        """Every key stands in the heap at its time."""
        if self._at:
            assert self._at.items() <= {(key, at) for at, key in self._heap}, "a timer would never go off"
