"""Answers `StatusQuery` live: asks the worker for its counters first, but waits no longer than a moment."""

from __future__ import annotations

from collections.abc import Callable

from distkv.actors.instance.worker_child import WorkerProcess
from distkv.control.commands import Answer
from distkv.control.rmanager.state_machine import RManager
from distkv.wire.channel import ServerChannel
from distkv.wire.messages.common import Member
from distkv.wire.messages.counters import Counters, total
from distkv.wire.messages.from_worker import WorkerStats
from distkv.wire.messages.to_worker import StatsQuery

PATIENCE_S = 0.4


class StatusResponder:
    """Status queries that wait for the worker.

    counters: what this process counts beside control. worker_counters: the newest heard of.
    """

    def __init__(
        self,
        core: RManager,
        member: Member,
        worker: WorkerProcess,
        server: ServerChannel,
        answer: Callable[[Answer, str], None],
    ) -> None:
        self.counters = Counters()
        self.worker_counters = Counters()
        self._core = core
        self._member = member
        self._worker = worker
        self._server = server
        self._answer = answer
        self._asked: dict[int, tuple[bytes, str, float]] = {}
        self._last_id = 0

    def ask(self, route: bytes, cause: str, now: float) -> None:
        """Somebody wants to know."""
        self._last_id += 1
        self._asked[self._last_id] = (route, cause, now)
        self._worker.send(StatsQuery(query_id=self._last_id), cause)

    def on_stats(self, stats: WorkerStats) -> None:
        """The worker answered."""
        self.worker_counters = stats.counters
        self._reply(stats.query_id)

    def tick(self, now: float) -> None:
        """Answer with what was heard last where the worker is silent."""
        for query_id, (_, _, asked_at) in list(self._asked.items()):
            if now - asked_at >= PATIENCE_S:
                self._reply(query_id)

    def _reply(self, query_id: int) -> None:
        asked = self._asked.pop(query_id, None)
        if asked is not None:
            route, cause, _ = asked
            own = Counters(malformed_messages=self._server.malformed)
            status = self._core.status(self._member, total(self.worker_counters, self.counters, own))
            self._answer(Answer(route, status), cause)
