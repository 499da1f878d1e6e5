"""How long what was tried in vain is left alone: twice as long each time."""

from __future__ import annotations

import math
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key")


class Pause(NamedTuple):
    """Until when, and for how long in all."""

    until: float
    seconds: float


class Pauses(Generic[Key]):
    """Of `most` keys; the oldest is forgotten for one more. forget_s: so long after a pause the next one is the first
    again."""

    def __init__(self, first_s: float, longest_s: float, most: int, forget_s: float = math.inf) -> None:
        self._first_s, self._longest_s, self._most, self._forget_s = first_s, longest_s, most, forget_s
        self._pauses: dict[Key, Pause] = {}

    def failed(self, key: Key, now: float) -> float:
        """It was in vain; returns the seconds for which it is left alone."""
        before, seconds = self._pauses.pop(key, None), self._first_s
        if before is not None and now < before.until + self._forget_s:
            seconds = min(self._longest_s, 2 * before.seconds)
        self._pauses[key] = Pause(now + seconds, seconds)
        if len(self._pauses) > self._most:
            del self._pauses[next(iter(self._pauses))]
        return seconds

    def succeeded(self, key: Key) -> None:
        """The next pause is the first again."""
        self._pauses.pop(key, None)

    def is_over(self, key: Key, now: float) -> bool:
        """Whether it may be tried."""
        pause = self._pauses.get(key)
        return pause is None or now >= pause.until
