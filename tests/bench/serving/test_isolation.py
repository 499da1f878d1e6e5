"""The benchmark of attacks on a gateway: what is sent, what the observer sees, what the report says."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from distkv.actors.task_scope import task_scope
from distkv.bench.attacks import observation
from distkv.bench.attacks.attacker import LEFT, play
from distkv.bench.attacks.observation import LIVE, STREAMS, Observation, Seen
from distkv.bench.attacks.requests import FULL, QUICK, Attack, attacks
from distkv.bench.serving import isolation
from distkv.cli.exit_codes import run
from tests.bench.quick_run import quick_report
from tests.waiting import until

ALIVE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok"
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT, DONE, ERROR = b'data: {"a": 1}\n\n', b"data: [DONE]\n\n", b'data: {"error": {}}\n\n'


class Gateway:
    """Answers health checks and completions with what it was given; None never answers, b"" closes the connection."""

    def __init__(self, live: bytes | None = ALIVE, completion: bytes | None = HEAD + EVENT * 3 + DONE) -> None:
        self.live, self.completion = live, completion
        self.bodies: list[bytes] = []
        self.closed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[tuple[str, int]]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield server.sockets[0].getsockname()
            self.closed.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            if head == LIVE:
                answer = self.live
            else:
                _, _, length = head.partition(b"Content-Length: ")
                self.bodies.append(await reader.readexactly(int(length)))
                answer = self.completion
            if answer is None:
                await self.closed.wait()
                return
            writer.write(answer)
            await writer.drain()


async def seen_of(gateway: Gateway, enough) -> Seen:
    async with gateway.serving() as (host, port), task_scope() as tasks:
        one = Observation(host, port, tasks)
        await until(lambda: enough(one.seen))
        return await one.cut()


async def test_health_checks_and_streams_are_seen() -> None:
    seen = await seen_of(Gateway(), lambda seen: len(seen.live_s) > 3 and seen.finished >= STREAMS)
    assert min(seen.live_s) > 0 and len(seen.late_s) >= len(seen.live_s)
    assert len(seen.first_s) >= STREAMS and len(seen.between_s) >= 2 * STREAMS
    assert (seen.unanswered, seen.failed, seen.refused) == ({}, {}, 0)


@pytest.mark.parametrize(
    ("live", "told"),
    [(b"", "the connection was lost"), (b"HTTP/1.1 503 No\r\n\r\n", "another status than 200"), (None, "in time")],
)
async def test_a_health_check_without_an_answer_is_counted_by_its_reason(live, told, monkeypatch) -> None:
    monkeypatch.setattr(observation, "ANSWER_S", 0.05 if live is None else 10.0)
    seen = await seen_of(Gateway(live), lambda seen: seen.unanswered)
    assert [told in reason for reason in seen.unanswered] == [True] and not seen.live_s


@pytest.mark.parametrize(
    ("completion", "told"),
    [
        (HEAD + EVENT, "the connection ended before the answer"),
        (HEAD + EVENT + ERROR, '{"error": {}}'),
        (b"HTTP/1.1 400 No\r\n\r\n", "400"),
        (None, "in time"),
    ],
)
async def test_a_stream_that_fails_is_counted_by_its_reason(completion, told, monkeypatch) -> None:
    monkeypatch.setattr(observation, "SILENCE_S", 0.05 if completion is None else 10.0)
    seen = await seen_of(Gateway(completion=completion), lambda seen: seen.failed)
    assert [told in reason for reason in seen.failed] == [True] and not seen.finished


async def test_a_stream_that_is_told_to_come_again_does() -> None:
    gateway = Gateway(completion=b"HTTP/1.1 429 Too Many Requests\r\n\r\n")
    seen = await seen_of(gateway, lambda seen: seen.refused)
    assert not seen.failed and not seen.finished


async def test_a_window_begins_where_the_one_before_ends() -> None:
    async with Gateway().serving() as (host, port), task_scope() as tasks:
        one = Observation(host, port, tasks)
        await until(lambda: one.seen.live_s)
        before = await one.cut()
        checks = len(before.late_s)
        assert len(before.live_s) == checks
        await until(lambda: one.seen.live_s)
        assert len(before.late_s) == checks


async def test_an_attack_counts_what_it_is_answered() -> None:
    async with Gateway(completion=b"HTTP/1.1 400 No\r\n\r\n").serving() as (host, port):
        whole = a_completion()
        assert await play(Attack("refused", [whole] * 3, 5.0), host, port) == {"400": 3}
        assert await play(Attack("half", [whole[:-1]] * 2, 0.05), host, port) == {LEFT: 2}
    async with Gateway(completion=b"").serving() as (host, port):
        assert await play(Attack("cut", [whole], 5.0), host, port) == {"the connection was lost": 1}
    assert sum((await play(Attack("nobody there", [whole], 5.0), host, port)).values()) == 1


def a_completion() -> bytes:
    return attacks(QUICK, 10)[0].raw[0]


def test_attacks_are_of_the_sizes_that_they_say() -> None:
    """Requests of the full scale; what is the same is there once."""
    named = {attack.name: attack for attack in attacks(FULL, 1000)}
    raw = {name: attack.raw for name, attack in named.items()}
    assert 8e6 - 20 < len(raw["a text of 8 MB"][0]) < 8.1e6
    assert len(set(raw["64 texts of 250 kB"])) == 64
    assert len(raw["32 tokenize calls of 250 kB"]) == 32
    assert len(raw["4 × 1,024 prompts"]) == 4
    assert raw["n = 128 of 100,000 token ids"][0].count(b"5,") == 99_999
    assert 17e6 < len(raw["64 stops of 270 kB"][0]) < 18e6
    assert raw["60 bodies of 1,500,000 chunks"][0].count(b"\r\n1\r\n") == 1_500_000
    assert len(raw["1,000 half-sent bodies"]) == 1000
    assert named["1,000 half-sent bodies"].leaves_s < named["a text of 8 MB"].leaves_s


def test_lost_instances_are_read_from_the_log_once(tmp_path: Path) -> None:
    log = tmp_path / "gmanager.log"
    lines = ['{"event":"ready","address":"a"}', '{"event":"instance_state","state":"dead","instance":"i0"}']
    log.write_text("\n".join(lines))
    losses = isolation.Losses(log)
    assert losses.since_last() == 0
    with log.open("a") as file:
        file.write('\n{"event":"instance_state","state":"ready"}\n{"event":"instance_state","state":"unreachable"}\n')
    assert (losses.since_last(), losses.since_last()) == (2, 0)


class FakeObserver:
    """It saw this in every window."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen

    def cut(self) -> Seen:
        return self.seen


def goals_of(tmp_path: Path, seen: Seen, log: str = "", other_cores: float = 0.0) -> dict[str, tuple[str, bool]]:
    (tmp_path / "gmanager.log").write_text("")
    cluster = SimpleNamespace(http_url="http://127.0.0.1:9", log_dir=tmp_path)
    siege = isolation.Siege(cluster, FakeObserver(seen), isolation.Times(0.0, 0.01, 0.0))
    (tmp_path / "gmanager.log").write_text(log)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolation.OtherPrograms, "cores", lambda _: other_cores)
        measured = siege.measure(Attack("one", (), 0.0))
    goals = isolation._goals({case: {"one": [value]} for case, value in measured.items()}, siege)
    return {goal.goal: (goal.measured, goal.met) for goal in goals}


def test_goals_are_met_by_what_nobody_noticed(tmp_path) -> None:
    seen = Seen(live_s=[0.001] * 396 + [0.2] * 4, late_s=[0.0], first_s=[0.1], between_s=[0.01], finished=1)
    assert set(goals_of(tmp_path, seen, other_cores=60.0).values()) == {("1.0 ms", True), ("none", True)}


def test_goals_are_missed_by_what_others_noticed(tmp_path) -> None:
    seen = Seen(live_s=[0.06] * 400, late_s=[0.0], unanswered={"x": 1}, failed={"y": 2})
    goals = goals_of(tmp_path, seen, '{"event":"instance_state","state":"dead"}\n')
    assert goals == {
        "/live p99, one": ("60.0 ms", False),
        "health checks without an answer": ("one: 2 x", False),
        "streams of others that failed": ("one: 4 y", False),
        "instances called unreachable or dead": ("1 one", False),
    }


@pytest.mark.parametrize(
    ("seen", "other_cores", "met"),
    [
        (Seen(), 0.0, False),
        (Seen(live_s=[0.06] * 400, late_s=[0.02]), 0.0, None),
        (Seen(live_s=[0.06] * 400, late_s=[0.0]), 60.0, None),
        (Seen(live_s=[0.001] * 299, late_s=[0.0]), 0.0, None),
        (Seen(live_s=[0.001] * 299, late_s=[0.0], unanswered={"x": 1}), 0.0, True),
    ],
    ids=["no answer", "the observer waited itself", "other programs took the cores", "too few", "just enough"],
)
def test_what_says_nothing_of_the_cluster_neither_meets_nor_misses(tmp_path, seen, other_cores, met) -> None:
    assert goals_of(tmp_path, seen, other_cores=other_cores)["/live p99, one"][1] is met


def test_a_quick_run_makes_enough_checks() -> None:
    assert isolation.QUICK_TIMES.span_s / observation.ASK_S > isolation.LEAST_CHECKS


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_quick_run(tmp_path: Path) -> None:
    report = quick_report(isolation.main, tmp_path)
    attacked = {goal["goal"].partition(", ")[2] for goal in report["goals"] if goal["goal"].startswith("/live p99")}
    assert len(attacked) == 11
    assert {row["case"] for row in report["results"]} == set(isolation.UNITS)
    assert {row["variant"] for row in report["results"] if row["case"] == isolation.LIVE_HIGH} == attacked
    assert all(0 < row["min"] <= row["median"] <= row["max"] for row in report["results"])
    assert all(int(checks) >= isolation.LEAST_CHECKS for checks in report["machine"]["checks"].values())
    broken = [goal for goal in report["goals"] if goal["target"] == "none" and not goal["met"]]
    assert not broken


def test_an_interrupted_run_keeps_its_rounds(tmp_path, monkeypatch) -> None:
    calls = []

    def one(attack: Attack) -> dict[str, float]:
        calls.append(attack.name)
        if calls.count(attack.name) == 2:
            raise KeyboardInterrupt
        return {isolation.LIVE_HIGH: 1.0}

    monkeypatch.setattr(isolation, "LocalCluster", MagicMock())
    monkeypatch.setattr(isolation, "Observer", MagicMock())
    monkeypatch.setattr(isolation, "Siege", lambda *_: SimpleNamespace(measure=one))
    assert run(isolation.main, ["--quick", "--rounds", "2", "--json", str(tmp_path / "f.json")]) == 130
    report = json.loads((tmp_path / "f.json").read_text())
    assert [row["variant"] for row in report["results"]] == list(dict.fromkeys(calls))
