"""StatusResponder: live counters if the worker answers in time, the last ones if not."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

from distkv.actors.instance.status_responder import PATIENCE_S, StatusResponder
from distkv.clock import ManualClock
from distkv.control.commands import Answer
from distkv.control.request.answer.output import NoText
from distkv.control.rmanager.state import RManagerSettings
from distkv.control.rmanager.state_machine import RManager
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.from_worker import WorkerStats
from distkv.wire.messages.to_client import Status
from distkv.wire.messages.to_worker import StatsQuery
from tests.control.parts import make_member


class Asked:
    def __init__(self) -> None:
        self.clock = ManualClock(5.0)
        self.queries: list[int] = []
        self.answers: list[tuple[bytes, Status, str]] = []
        worker: Any = SimpleNamespace(send=self._send)
        core = RManager(
            RManagerSettings(instance_id="a", incarnation=1, block_tokens=4, num_blocks=16, vocab_size=100),
            NoText,
            Random(0),
        )
        self.responder = StatusResponder(core, make_member("a", pid=10, worker_pid=11), worker, lambda: 2, self._answer)

    def _send(self, query: StatsQuery, cause: str) -> None:
        self.queries.append(query.query_id)

    def _answer(self, answer: Answer, cause: str) -> None:
        assert isinstance(answer.body, Status)
        self.answers.append((answer.route, answer.body, cause))

    def ask(self, route: bytes) -> None:
        self.responder.query(route, f"asked by {route.decode()}", self.clock.now())


def test_each_asker_gets_what_the_worker_says_now() -> None:
    asked = Asked()
    asked.ask(b"x")
    asked.ask(b"y")
    assert len(set(asked.queries)) == 2 and asked.answers == []
    asked.responder.on_stats(
        WorkerStats(query_id=asked.queries[1], counters=Counters(kv_bytes=7, malformed_messages=1))
    )
    (answer,) = asked.answers
    route, status, cause = answer
    assert (route, cause) == (b"y", "asked by y")
    assert status.instance.counters.kv_bytes == 7
    assert status.instance.counters.malformed_messages == 3, "the worker's links and the instance's own door"
    assert (status.instance.pid, status.instance.worker_pid, status.instance.blocks.total) == (10, 11, 16)


def test_a_silent_worker_delays_nobody_for_long() -> None:
    asked = Asked()
    asked.responder.worker_counters = Counters(kv_bytes=3)
    asked.ask(b"x")
    asked.responder.tick(asked.clock.advance(PATIENCE_S / 2))
    assert asked.answers == []
    asked.ask(b"y")
    asked.responder.tick(asked.clock.advance(PATIENCE_S * 0.6))
    assert [(route, status.instance.counters.kv_bytes) for route, status, _ in asked.answers] == [(b"x", 3)]
    asked.responder.on_stats(WorkerStats(query_id=asked.queries[0], counters=Counters(kv_bytes=9)))
    assert len(asked.answers) == 1, "answered once"
    assert asked.responder.worker_counters.kv_bytes == 9
    asked.responder.tick(asked.clock.advance(PATIENCE_S))
    assert [(route, status.instance.counters.kv_bytes) for route, status, _ in asked.answers[1:]] == [(b"y", 9)]
