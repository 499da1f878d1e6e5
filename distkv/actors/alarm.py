"""Time for a state machine: it is told when the moment it waits for has come, and not before."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable

from distkv.clock import Clock

LEAST_SLEEP_S = 0.001
"""Between two rings, so that whatever is always due cannot keep everything else from running."""
LATE_S = 0.25
"""Who wakes so much later than it wanted was stopped, or busy with something else."""
READING_S = 0.1
"""Then it is given so long to read what came meanwhile. What is overdue now may have been answered in time."""


class Alarm:
    """Calls `ring` once `next_deadline()` has come. Whatever may have moved that earlier is followed by `check`.

    A process that was stopped finds answers and deadlines at once when it goes on: answers first.
    """

    def __init__(
        self,
        clock: Clock,
        next_deadline: Callable[[], float],
        ring: Callable[[], None],
        rest_s: float = LEAST_SLEEP_S,
    ) -> None:
        """rest_s: between two rings, so that what falls due meanwhile is done in one go."""
        self._clock = clock
        self._next_deadline = next_deadline
        self._ring = ring
        self._rest_s = rest_s
        self._set_for = math.inf
        self._moved = asyncio.Event()

    def check(self) -> None:
        """Something has happened: it may be needed earlier."""
        if self._next_deadline() < self._set_for:
            self._moved.set()

    async def run(self) -> None:
        """Ring whenever it is time, until cancelled; raises what `ring` raises."""
        while True:
            self._moved.clear()
            self._set_for = self._next_deadline()
            sleep_s = self._set_for - self._clock.now()
            if sleep_s > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if math.isinf(sleep_s) else sleep_s):
                        await self._moved.wait()
                if self._clock.now() > self._set_for + LATE_S:
                    await asyncio.sleep(READING_S)
            else:
                self._ring()
                await asyncio.sleep(self._rest_s)
