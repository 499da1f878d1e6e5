"""Answers `StatusQuery` with counters that the worker sends for it, or its last ones if it does not in a moment.

A status takes a look at all requests that hold memory. So one is made at a time, for all that wait for one then, and
only so often: who asks in a loop waits, and slows nobody.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from distkv.actors.instance.worker_group import WorkerGroup
from distkv.control.commands import Answer
from distkv.control.query_limit import Credit
from distkv.control.rmanager.state_machine import RManager
from distkv.wire.messages.common import Member
from distkv.wire.messages.counters import Counters, total
from distkv.wire.messages.from_worker import WorkerStats
from distkv.wire.messages.to_worker import StatsQuery

PATIENCE_S = 0.4
BURST, PER_S = 20, 20.0
"""Statuses that are made at once, and in the long run."""
MOST_TOLD = 64
"""Routes that one status goes to: for each it is encoded anew."""
MOST_WAITING = 4096
"""Routes that wait for one; of more the oldest are not answered."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """The worker was asked for its counters `at`, for a status to these routes. told: what caused each query."""

    query_id: int
    at: float
    told: dict[bytes, str]


class StatusResponder:
    """Status queries that wait for the worker. What a route asks while it waits is answered by one status.

    counters: what this process counts beside control. worker_counters: the newest heard of. malformed: counts messages
    that the process's own channels refused.
    """

    def __init__(
        self,
        core: RManager,
        member: Member,
        worker: WorkerGroup,
        malformed: Callable[[], int],
        answer: Callable[[Answer, str], None],
    ) -> None:
        self.counters = Counters()
        self.worker_counters = Counters()
        self._core = core
        self._member = member
        self._worker = worker
        self._malformed = malformed
        self._answer = answer
        self._waiting: dict[bytes, str] = {}  # what caused the newest query of each route
        self._asked: _Asked | None = None
        self._credit = Credit(BURST, PER_S, 0.0)
        self._next_at = math.inf
        self._last_id = 0

    def query(self, route: bytes, cause: str, now: float) -> None:
        """A StatusQuery came by `route`."""
        self._waiting[route] = cause
        if len(self._waiting) > MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]
        self._ask(now)

    def on_stats(self, stats: WorkerStats, now: float) -> None:
        """The worker answered."""
        self.worker_counters = stats.counters
        if self._asked is not None and self._asked.query_id == stats.query_id:
            self._reply(now)

    def next_deadline(self) -> float:
        """When the worker has been silent for too long, or the next status may be made."""
        return self._next_at if self._asked is None else self._asked.at + PATIENCE_S

    def tick(self, now: float) -> None:
        """Answer with what was heard last where the worker is silent; go on where that had to wait."""
        if self._asked is not None and now - self._asked.at >= PATIENCE_S:
            self._reply(now)
        self._ask(now)

    def _ask(self, now: float) -> None:
        """Have the worker send its counters, unless that is under way or it is too soon."""
        if self._asked is not None or not self._waiting:
            return
        if wait_s := self._credit.wait_s(now):
            self._next_at = now + wait_s
            return
        self._credit.spend()
        self._next_at = math.inf
        told = dict(islice(self._waiting.items(), MOST_TOLD))
        for route in told:
            del self._waiting[route]
        self._last_id += 1
        self._asked = _Asked(self._last_id, now, told)
        self._worker.send(StatsQuery(query_id=self._last_id), next(reversed(told.values())))

    def _reply(self, now: float) -> None:
        assert self._asked is not None
        told, self._asked = self._asked.told, None
        own = Counters(malformed_messages=self._malformed())
        status = self._core.status(self._member, total(self.worker_counters, self.counters, own))
        for route, cause in told.items():
            self._answer(Answer(route, status), cause)
        self._ask(now)
