"""Answers `StatusQuery` with counters that the worker sends for it, or its last ones if it does not in a moment."""

from __future__ import annotations

import math
from collections.abc import Callable

from distkv.actors.instance.worker_group import WorkerGroup
from distkv.control.commands import Answer
from distkv.control.rmanager.state_machine import RManager
from distkv.wire.messages.common import Member
from distkv.wire.messages.counters import Counters, total
from distkv.wire.messages.from_worker import WorkerStats
from distkv.wire.messages.to_worker import StatsQuery

PATIENCE_S = 0.4


class StatusResponder:
    """Status queries that wait for the worker.

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
        self._waiting: dict[int, tuple[bytes, str, float]] = {}
        self._last_id = 0

    def query(self, route: bytes, cause: str, now: float) -> None:
        """A StatusQuery came by `route`."""
        self._last_id += 1
        self._waiting[self._last_id] = (route, cause, now)
        self._worker.send(StatsQuery(query_id=self._last_id), cause)

    def on_stats(self, stats: WorkerStats) -> None:
        """The worker answered."""
        self.worker_counters = stats.counters
        self._reply(stats.query_id)

    def next_deadline(self) -> float:
        """When the worker has been silent for too long."""
        return next((since + PATIENCE_S for _, _, since in self._waiting.values()), math.inf)

    def tick(self, now: float) -> None:
        """Answer with what was heard last where the worker is silent."""
        for query_id, (_, _, since) in list(self._waiting.items()):
            if now - since >= PATIENCE_S:
                self._reply(query_id)

    def _reply(self, query_id: int) -> None:
        waiting = self._waiting.pop(query_id, None)
        if waiting is not None:
            route, cause, _ = waiting
            own = Counters(malformed_messages=self._malformed())
            status = self._core.status(self._member, total(self.worker_counters, self.counters, own))
            self._answer(Answer(route, status), cause)
