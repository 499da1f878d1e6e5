"""How connections that send at the same time share the event loop."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

Read = Callable[[], None]
TURN_S = 0.002
"""What comes is read for so long in a turn of the event loop."""


class Portions:
    """Lets all connections together read for TURN_S in each turn of the event loop, so many bytes at a time.

    What a byte costs depends on how it is framed: in chunks of one byte a portion takes the parser a millisecond. With
    one for each connection the loop would be held for as long as there are connections.
    """

    def __init__(self, size_bytes: int) -> None:
        self._bytes = self._left = size_bytes
        self._waiting: deque[Read] = deque()
        self._is_begun = False

    def take(self, size_bytes: int) -> bool:
        """Whether so many may be read now: nobody waits, and so much of a portion is left in this turn."""
        if self._waiting or size_bytes > self._left:
            return False
        self._begin(size_bytes)
        return True

    def wait(self, one: Read) -> None:
        """Call it when it may read a portion."""
        self._waiting.append(one)
        self._begin(0)

    def _begin(self, size_bytes: int) -> None:
        self._left -= size_bytes
        if not self._is_begun:
            self._is_begun = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._is_begun, self._left = False, self._bytes
        if not self._waiting:
            return
        self._begin(self._bytes)
        ends_s = time.monotonic() + TURN_S
        while self._waiting:
            self._waiting.popleft()()
            if time.monotonic() >= ends_s:
                break
