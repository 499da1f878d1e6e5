"""How requests that begin, or go on, at the same time share the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

Wake = Callable[[], None]


class Turns:
    """Wakes one request in each turn of the event loop.

    A request may take a millisecond from when it is woken to when it waits again. Thousands that are woken together, by
    a burst of connections or the end of them, would hold the loop for seconds; one at a time, output of others and
    whatever is new come in between. What is urgent goes first.
    """

    def __init__(self) -> None:
        self._urgent: deque[Wake] = deque()
        self._others: deque[Wake] = deque()
        self._is_taken = False

    def wake(self, one: Wake, *, urgent: bool = False) -> None:
        """Call it now if this turn is free, else when it is its turn."""
        if self._is_taken:
            (self._urgent if urgent else self._others).append(one)
        else:
            self._take(one)

    def _take(self, one: Wake) -> None:
        self._is_taken = True
        asyncio.get_running_loop().call_soon(self._next)
        one()

    def _next(self) -> None:
        self._is_taken = False
        if waiting := self._urgent or self._others:
            self._take(waiting.popleft())
