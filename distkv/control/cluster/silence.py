"""Who is silent, judged by the time in which the gManager itself was listening.

A gManager that was stopped, or busy, heard nobody: what it missed is its own gap and no sign of death. So silence is
counted in attentive time, which stands still in such gaps, and is judged only when the inbox was found empty.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import islice, takewhile

ATTENTIVE_STEP_S = 0.25
"""Most time between two events in which the gManager counts as listening; it ticks as often while anybody lives."""
GAP_S = 1.0
"""After a gap of this length nobody is silent before all of its patience has gone by anew."""
LEAST_PERIOD_S, MOST_PERIOD_S = 0.1, 60.0
UNREACHABLE_PERIODS, DEAD_PERIODS = 3, 4
MOST_DEAD = 1024
"""Of more that are dead the oldest are forgotten sooner: those that start over and over under ever new names fill
neither this process nor the lists of all others."""
STEP_S = 0.05
_ROUNDING_S = 1e-6


class AttentiveTime:
    """Counts attentive time. now_s: how much there was. since_s: of it, when the last long gap ended."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.since_s = 0.0
        self._last: float | None = None

    def advance(self, now: float) -> None:
        """It is `now` by the clock."""
        passed = 0.0 if self._last is None else now - self._last
        self._last = now
        if 0.0 < passed <= ATTENTIVE_STEP_S:
            self.now_s += passed
        elif passed > 0.0:
            self.now_s += ATTENTIVE_STEP_S
            if passed > GAP_S:
                self.since_s = self.now_s

    def is_over(self, due_s: float) -> bool:
        """Whether so much attentive time has passed, rounded up a little."""
        return self.now_s + _ROUNDING_S >= due_s

    def when(self, due_s: float) -> float:
        """When to tick so that `due_s` of attentive time comes, by the clock; at the latest after one step."""
        assert self._last is not None
        return self._last + min(ATTENTIVE_STEP_S, max(0.0, due_s - self.now_s))


class Deadlines:
    """When to look at an instance next, in attentive time; one deadline each, the last that was set. Those of one
    STEP_S come together, at its end: most are put off before, and that costs the same however many there are."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._names: dict[int, dict[str, None]] = {}
        self._step_of: dict[str, int] = {}

    def put(self, instance_id: str, due_s: float) -> None:
        """Look at it then, or up to STEP_S later."""
        self.drop(instance_id)
        step = math.ceil(due_s / STEP_S)
        self._step_of[instance_id] = step
        if (names := self._names.get(step)) is None:
            self._names[step] = {instance_id: None}
            heapq.heappush(self._steps, step)
        else:
            names[instance_id] = None

    def drop(self, instance_id: str) -> None:
        """Look at it no more."""
        if (step := self._step_of.pop(instance_id, None)) is not None:
            del self._names[step][instance_id]

    def pop(self, now_s: float) -> str | None:
        """The instance to look at now, if any; its deadline is gone."""
        while self._steps and self.next_s() <= now_s + _ROUNDING_S:
            step = self._steps[0]
            if names := self._names[step]:
                instance_id, _ = names.popitem()
                del self._step_of[instance_id]
                return instance_id
            heapq.heappop(self._steps)
            del self._names[step]
        return None

    def next_s(self) -> float:
        """When the next is due at the earliest."""
        return self._steps[0] * STEP_S if self._steps else math.inf

    def names(self) -> frozenset[str]:
        """Who has a deadline."""
        return frozenset(self._step_of)


class Dead:
    """Names of the dead, the one first that has been for longest."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self.are_too_many = False

    def put(self, instance_id: str, *, is_dead: bool) -> None:
        """It is from now on, or is not."""
        self._names.pop(instance_id, None)
        if is_dead:
            self._names[instance_id] = None
        self.are_too_many = len(self._names) > MOST_DEAD

    def oldest(self, most: int, has_told: Callable[[str], bool]) -> list[str]:
        """Those beyond MOST_DEAD, `most` of them at most, that all others know to be dead: who does not know it would
        keep them. Only where there are too many."""
        oldest = islice(self._names, min(most, len(self._names) - MOST_DEAD))
        return list(takewhile(has_told, oldest))

    def names(self) -> frozenset[str]:
        """All of them."""
        return frozenset(self._names)


def unreachable_after_s(period_s: float) -> float:
    """Silence of one that beats with this period until it counts as unreachable."""
    return UNREACHABLE_PERIODS * period_s


def dead_after_s(period_s: float, least_s: float) -> float:
    """Silence until it counts as dead: at least `least_s`, and some heartbeats of its own."""
    return max(least_s, DEAD_PERIODS * period_s)


def period_of(told_s: float, usual_s: float) -> float:
    """By which period to judge an instance that says it beats every `told_s`; 0 is that it does not say."""
    return min(max(told_s or usual_s, LEAST_PERIOD_S), MOST_PERIOD_S)
