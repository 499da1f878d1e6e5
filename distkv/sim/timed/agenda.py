"""What is to happen, in order of time; the clock of a simulated cluster."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

Action = Callable[[], None]


class Entry:
    """Something that is to happen once, unless it is cancelled."""

    __slots__ = ("action", "when")

    def __init__(self, when: float, action: Action) -> None:
        self.when = when
        self.action: Action | None = action

    def cancel(self) -> None:
        """It does not happen."""
        self.action = None


class Agenda:
    """Entries at one time happen in the order in which they were put down. Nothing happens in the past."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Entry]] = []
        self._count = 0
        self._now = 0.0

    def now(self) -> float:
        """The time of what happens now, in seconds from the beginning."""
        return self._now

    def at(self, when: float, action: Action) -> Entry:
        """Have it happen at `when`, or now if that has passed."""
        entry = Entry(max(when, self._now), action)
        self._count += 1
        heapq.heappush(self._heap, (entry.when, self._count, entry))
        return entry

    def after(self, seconds: float, action: Action) -> Entry:
        """Have it happen in so many seconds."""
        return self.at(self._now + seconds, action)

    def run(self, until: float = math.inf, ended: Callable[[], bool] = lambda: False) -> None:
        """Let happen what is due by `until`, or until `ended()`; what is left may be run later."""
        heap = self._heap
        while heap and heap[0][0] <= until and not ended():
            when, _, entry = heapq.heappop(heap)
            if (action := entry.action) is not None:
                self._now = when
                action()
        if until < math.inf and not ended():
            self._now = max(self._now, until)


class Alarm:
    """Calls `ring` once `next_deadline()` has come, as that of a real process does. Whatever may have moved that
    earlier is followed by `check`."""

    __slots__ = ("_agenda", "_entry", "_next_deadline", "_rest_s", "_rested_at", "_ring", "_set_for")

    def __init__(self, agenda: Agenda, next_deadline: Callable[[], float], ring: Action, rest_s: float) -> None:
        """rest_s: between two rings, at least."""
        self._agenda = agenda
        self._next_deadline = next_deadline
        self._ring = ring
        self._rest_s = rest_s
        self._rested_at = -math.inf
        self._set_for = math.inf
        self._entry: Entry | None = None

    def check(self) -> None:
        """Something has happened: it may be needed earlier."""
        due = max(self._next_deadline(), self._rested_at)
        if due < self._set_for:
            self._cancel()
            self._set_for = due
            self._entry = self._agenda.at(due, self._on_time)

    def stop(self) -> None:
        """It rings no more, until the next check."""
        self._cancel()
        self._set_for = math.inf

    def _cancel(self) -> None:
        if self._entry is not None:
            self._entry.cancel()
            self._entry = None

    def _on_time(self) -> None:
        now = self._agenda.now()
        self._entry, self._set_for = None, math.inf
        if self._next_deadline() <= now:
            self._rested_at = now + self._rest_s
            self._ring()
        self.check()
