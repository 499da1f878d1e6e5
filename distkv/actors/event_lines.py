"""What happened on an instance or at a gManager, as lines of its log: not too many of a kind, few in one turn of the
event loop.

Anybody's requests and messages cause them, many requests may begin and end with one step, thousands of instances may
join at once, and writing a line costs as much as deciding about a request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import structlog

from distkv.clock import Clock
from distkv.events import ClusterEvent
from distkv.log.line_limit import LineLimit

BURST_LINES, LINES_PER_S = 1000, 200.0
"""Of each kind of event."""
LINES_IN_A_TURN = 16


class EventLines:
    """Writes them in order; those that wait for their turn are written by `close` at the latest."""

    def __init__(self, clock: Clock) -> None:
        """Needs a running loop."""
        self._clock = clock
        self._log = structlog.get_logger()
        self._loop = asyncio.get_running_loop()
        self._limits: dict[str, LineLimit] = {}
        self._waiting: deque[tuple[ClusterEvent, dict[str, Any]]] = deque()
        self._left_in_turn = LINES_IN_A_TURN
        self._is_closed = False

    def publish(self, event: ClusterEvent, cause: str) -> None:
        """A line of the log, unless there are too many of the kind."""
        left_out = self._limits.setdefault(event.name, LineLimit(BURST_LINES, LINES_PER_S)).admit(self._clock.now())
        if left_out is None:
            return
        if self._left_in_turn == LINES_IN_A_TURN:
            self._loop.call_soon(self._next_turn)
        self._waiting.append((event, {"cause": cause} | ({"left_out": left_out} if left_out else {})))
        self._write()

    def close(self) -> None:
        """Write what waits, and whatever comes yet at once."""
        self._is_closed = True
        self._write()

    def _next_turn(self) -> None:
        self._left_in_turn = LINES_IN_A_TURN
        if self._waiting:
            self._loop.call_soon(self._next_turn)
            self._write()

    def _write(self) -> None:
        while self._waiting and (self._left_in_turn > 0 or self._is_closed):
            self._left_in_turn -= 1
            event, more = self._waiting.popleft()
            self._log.info(event.name, **event.fields(), **more)
