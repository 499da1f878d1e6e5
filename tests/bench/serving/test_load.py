"""The benchmarks of many requests at once: their load generator, and quick runs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from distkv.bench.deciding import queue as queue_bench
from distkv.bench.serving import concurrency, interference
from distkv.bench.workloads import http_load
from distkv.bench.workloads.http_load import LoadResult
from distkv.cli.exit_codes import run
from tests.bench.quick_run import quick_report

ANSWER = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices": []}\n\n'


class Server:
    """Answers completions by turns with what is in `answers`, the last for ever; None closes the connection."""

    def __init__(self, *answers: list[bytes] | None) -> None:
        self._answers = list(answers)
        self.connections = 0
        self.requests = 0

    async def load(self, concurrency: int, requests: int, deadline_s: float = 10.0) -> LoadResult:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        async with server:
            return await http_load.run(host, port, concurrency, requests, b"{}", deadline_s)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await reader.readuntil(b"\r\n\r\n{}"):
                self.requests += 1
                pieces = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
                for piece in pieces or ():
                    writer.write(piece)
                    await writer.drain()
                if pieces is None:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def chunked(*bodies: bytes) -> list[bytes]:
    return [ANSWER] + [f"{len(body):x}\r\n".encode() + body + b"\r\n" for body in bodies] + [b"0\r\n\r\n"]


STREAMED = chunked(EVENT, EVENT, b"data: [DONE]\n\n")


async def test_every_request_is_sent_once_and_connections_are_kept() -> None:
    server = Server(STREAMED)
    result = await server.load(concurrency=4, requests=20)
    assert (result.finished, result.unfinished, result.refused, result.failed) == (20, 0, 0, {})
    assert (server.requests, server.connections) == (20, 4)
    assert len(result.first_s) == 20 and min(result.first_s) > 0


async def test_the_end_is_found_however_the_bytes_are_cut() -> None:
    whole = b"".join(STREAMED)
    server = Server([whole[at : at + 1] for at in range(len(whole))])
    assert (await server.load(concurrency=1, requests=2)).finished == 2


async def test_what_is_refused_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distkv.bench.workloads.http_load.RETRY_S", 0.01)
    server = Server([b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n"], STREAMED)
    result = await server.load(concurrency=1, requests=3)
    assert (result.finished, result.refused, result.failed) == (3, 1, {})


async def test_what_fails_is_counted_by_its_reason() -> None:
    broken = Server(None, [b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"], STREAMED)
    result = await broken.load(concurrency=3, requests=3)
    assert result.failed == {"the connection was lost": 1, "status 400": 1}
    assert result.finished == 1


async def test_what_is_not_answered_by_the_deadline_is_unfinished() -> None:
    result = await Server([ANSWER]).load(concurrency=2, requests=5, deadline_s=0.2)
    assert (result.finished, result.unfinished) == (0, 5)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("benchmark", [concurrency, interference, queue_bench])
def test_a_quick_run(benchmark, tmp_path: Path) -> None:
    report = quick_report(benchmark.main, tmp_path, "--rounds", "1")
    # Tokens of steps that are this short may come several at a time.
    assert all(row["min"] > 0 for row in report["results"] if row["case"] != interference.MEDIAN)
    assert len(report["goals"]) >= 2
    assert {goal["met"] for goal in report["goals"]} <= {True, False, None}


@pytest.mark.parametrize(
    ("benchmark", "measures", "options"),
    [(concurrency, "Levels", ["--rounds", "2"]), (queue_bench, "Batch", ["--rounds", "2"])],
)
def test_an_interrupted_run_keeps_its_rounds(benchmark, measures, options, tmp_path, monkeypatch) -> None:
    """Of those that take turns: in the second round, the first variant is the last."""
    calls = []

    def one(size: int) -> dict[str, float]:
        calls.append(size)
        if calls.count(size) == 2 and size == calls[0]:
            raise KeyboardInterrupt
        return {benchmark.CPU: float(size + 1)}

    monkeypatch.setattr(benchmark, "LocalCluster", MagicMock())
    monkeypatch.setattr(benchmark, measures, lambda *_: SimpleNamespace(measure=one))
    assert run(benchmark.main, ["--quick", *options, "--json", str(tmp_path / "f.json")]) == 130
    report = json.loads((tmp_path / "f.json").read_text())
    assert [row["case"] for row in report["results"]] == [benchmark.CPU] * len(set(calls))
    assert {row["unit"] for row in report["results"]} == {"ms"}


def test_interference_keeps_the_variants_that_were_measured(tmp_path, monkeypatch) -> None:
    names = (interference.MEDIAN, f"{interference.MEDIAN}, {interference.ALONE}", interference.WORK)
    stretched = dict.fromkeys(names, 2.0)

    class Arrival:
        def __init__(self, cluster: object, *_: object) -> None:
            self.is_whole = cluster is clusters[1]

        def alone(self, _: object) -> dict[str, float]:
            return {interference.PREFILL: 100.0}

        def beside(self, _: object) -> dict[str, float]:
            if self.is_whole:
                raise KeyboardInterrupt
            return stretched

    clusters = [MagicMock(), MagicMock()]
    for one in clusters:
        one.__enter__.return_value = one
    monkeypatch.setattr(interference, "LocalCluster", MagicMock(side_effect=clusters))
    monkeypatch.setattr(interference, "Arrival", Arrival)
    assert run(interference.main, ["--quick", "--json", str(tmp_path / "f.json")]) == 130
    rows = {(row["case"], row["unit"]) for row in json.loads((tmp_path / "f.json").read_text())["results"]}
    assert rows == {(interference.PREFILL, "tokens/s"), *zip(names, ("ms", "ms", "of alone"), strict=True)}
