"""How those that could go on at the same time share the event loop."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

Wake = Callable[[], object]
"""False where there was nothing to do any more: it takes no room in the turn."""
MOST_WOKEN = 16
TURN_S = 0.004
"""Of this thread's own time; a turn of the event loop that takes longer is followed by one with half as many."""


class Turns:
    """Wakes a few in each turn of the event loop, in the order in which they asked; what is urgent goes first.

    Thousands that are woken together would hold the loop for seconds; a few at a time, output of others and whatever
    is new come in between. How many there are in a turn follows from how long turns take, between `least` and
    MOST_WOKEN: a request may take ten microseconds from when it is woken to when it waits again, or a millisecond. More
    than one at least where other work makes turns long too, and more and more would wait.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time, least: int = 1) -> None:
        self._clock, self._least = clock, least
        self._most = MOST_WOKEN
        self._woken = 0
        self._is_turn = False
        self._began_s = 0.0
        self._urgent: deque[Wake] = deque()
        self._others: deque[Wake] = deque()

    def take(self, one: Wake, *, urgent: bool = False) -> None:
        """Call it now if this turn has room, else when it is its turn."""
        if self._woken < self._most:
            self._wake(one)
        else:
            (self._urgent if urgent else self._others).append(one)

    def _wake(self, one: Wake) -> None:
        if not self._is_turn:
            self._is_turn = True
            self._began_s = self._clock()
            asyncio.get_running_loop().call_soon(self._next)
        self._woken += 1
        if one() is False:
            self._woken -= 1

    def _next(self) -> None:
        took_s = self._clock() - self._began_s
        if took_s > TURN_S:
            self._most = max(self._least, self._most // 2)
        elif took_s < TURN_S / 2:
            self._most = min(MOST_WOKEN, self._most + 1)
        self._woken, self._is_turn = 0, False
        while self._woken < self._most and (waiting := self._urgent or self._others):
            self._wake(waiting.popleft())
