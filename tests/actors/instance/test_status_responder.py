"""StatusResponder: live counters if the worker answers in time, the last ones if not."""

from __future__ import annotations

import math
from random import Random
from types import SimpleNamespace
from typing import Any

from distkv.actors.instance.status_responder import (
    BURST,
    MOST_TOLD,
    MOST_WAITING,
    PATIENCE_S,
    PER_S,
    StatusResponder,
)
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

    def stats(self, counters: Counters, index: int = -1) -> None:
        self.responder.on_stats(WorkerStats(query_id=self.queries[index], counters=counters), self.clock.now())

    def answered(self) -> list[tuple[bytes, int]]:
        """Routes and the kv_bytes that they were told, since the last call."""
        told = [(route, status.instance.counters.kv_bytes) for route, status, _ in self.answers]
        self.answers.clear()
        return told


def test_each_asker_gets_what_the_worker_says_after_it_has_asked() -> None:
    asked = Asked()
    asked.ask(b"x")
    asked.ask(b"y")
    assert len(asked.queries) == 1 and asked.answers == []
    asked.stats(Counters(kv_bytes=7, malformed_messages=1))
    (answer,) = asked.answers
    route, status, cause = answer
    assert (route, cause) == (b"x", "asked by x")
    assert status.instance.counters.kv_bytes == 7
    assert status.instance.counters.malformed_messages == 3, "the worker's links and the instance's own door"
    assert (status.instance.pid, status.instance.worker_pid, status.instance.blocks.total) == (10, 11, 16)
    asked.answers.clear()
    asked.stats(Counters(kv_bytes=8))
    assert asked.answered() == [(b"y", 8)] and len(set(asked.queries)) == 2


def test_who_asks_in_a_loop_is_answered_so_often_and_no_more() -> None:
    asked = Asked()
    seconds = 4
    for _ in range(seconds * 1000):
        for route in (b"x", b"x", b"y"):
            asked.ask(route)
        asked.stats(Counters())
        if asked.responder.next_deadline() <= asked.clock.advance(0.001):
            asked.responder.tick(asked.clock.now())
    made = len(asked.queries)
    assert PER_S * seconds <= made <= BURST + PER_S * seconds + 1
    assert len(asked.answered()) <= 2 * made, "each of the two once by each status"


def test_a_crowd_is_answered_in_turn() -> None:
    asked = Asked()
    asked.ask(b"first")
    crowd = [b"%d" % number for number in range(3 * MOST_TOLD)]
    for route in crowd:
        asked.ask(route)
    for told in ([b"first"], crowd[:MOST_TOLD], crowd[MOST_TOLD : 2 * MOST_TOLD], crowd[2 * MOST_TOLD :]):
        asked.stats(Counters())
        assert [route for route, _ in asked.answered()] == told


def test_no_more_wait_than_are_kept() -> None:
    asked = Asked()
    for number in range(MOST_WAITING + 2):
        asked.ask(b"%d" % number)
    asked.stats(Counters())
    assert asked.answered() == [(b"0", 0)], "for which the worker was asked at once"
    asked.stats(Counters())
    assert asked.answered()[0][0] == b"2", "the oldest of those that waited is not answered"


def test_a_silent_worker_delays_nobody_for_long() -> None:
    asked = Asked()
    asked.responder.worker_counters = Counters(kv_bytes=3)
    asked.ask(b"x")
    asked.responder.tick(asked.clock.advance(PATIENCE_S / 2))
    assert asked.answers == []
    asked.ask(b"y")
    asked.responder.tick(asked.clock.advance(PATIENCE_S * 0.6))
    assert asked.answered() == [(b"x", 3)]
    asked.stats(Counters(kv_bytes=9), index=0)
    assert asked.answered() == [], "answered once"
    asked.responder.tick(asked.clock.advance(PATIENCE_S))
    assert asked.answered() == [(b"y", 9)], "by the newest that was heard"
    assert asked.responder.next_deadline() == math.inf
