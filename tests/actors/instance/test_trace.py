"""The trace of an instance: one line per message, and nothing of what users wrote or got."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from distkv import events
from distkv.actors.instance.trace import Trace
from distkv.control import commands as c
from distkv.errors import ConfigError
from distkv.types import SamplingParams
from distkv.wire.messages.common import Epoch, SpanRef
from distkv.wire.messages.to_client import TokenChunk
from distkv.wire.messages.to_gmanager import BorrowQuery
from distkv.wire.messages.to_rmanager import Released, Submit, TryMoveKvcache
from distkv.wire.messages.to_worker import SeqStep, Step
from tests.token_ids import packed, prompt_fields

SPAN = SpanRef(span_id="s", epoch=Epoch(1, 1))
ASK = TryMoveKvcache(span_id="s", request_id="r", debtor_id="a", debtor_incarnation=1, num_blocks=3, ttl_s=4.0)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_one_line_per_message_with_its_facts(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    before = time.monotonic()
    step = SeqStep(request_id="r", version=1, attempt=0, start=4, end=9, tokens=packed(1, 2, 3, 4, 5), local=())
    with Trace(str(path), "a") as trace:
        trace.sent(c.TellPeer("b", ASK))
        trace.sent(c.TellWorker(Step(step_id=7, seqs=(step,))))
        trace.sent(c.TellGManager(BorrowQuery(instance_id="a", borrow_id="q", num_blocks=3)))
        trace.sent(c.Publish(events.Draining(running=0, loans=0)))
        trace.sent(c.Exit(0, "drained"))
        trace.received("b", Released(span=SPAN))
    written = lines(path)
    assert [(line["event"], line["other"], line["type"]) for line in written] == [
        ("sent", "b", "TryMoveKvcache"),
        ("sent", "worker", "Step"),
        ("sent", "gmanager", "BorrowQuery"),
        ("received", "b", "Released"),
    ]
    assert written[0]["num_blocks"] == 3 and written[0]["request_id"] == "r"
    assert written[1]["ranges"] == {"r": [4, 9]} and written[1]["step_id"] == 7
    assert written[3]["span_id"] == "s"
    times = [float(str(line["t_s"])) for line in written]
    assert before <= times[0] <= times[-1] <= time.monotonic() and times == sorted(times)


def test_no_prompts_and_no_outputs(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with Trace(str(path), "a") as trace:
        trace.received("client", Submit(request_id="r", prompt="my secret", params=SamplingParams(stop="secret")))
        trace.received("client", Submit(request_id="r", params=SamplingParams(), **prompt_fields((4711, 4712))))
        trace.sent(c.Answer(b"x", TokenChunk(request_id="r", token_ids=(4711,), text="secret", finish_reason="stop")))
    text = path.read_text(encoding="utf-8")
    assert "secret" not in text and "4711" not in text
    assert lines(path)[2]["num_token_ids"] == 1 and lines(path)[2]["finish_reason"] == "stop"


def test_a_later_incarnation_writes_on(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    for _ in range(2):
        with Trace(str(path), "a") as trace:
            trace.sent(c.TellPeer("b", ASK))
    assert len(lines(path)) == 2


def test_a_file_that_takes_no_more_ends_the_trace_and_nothing_else() -> None:
    with capture_logs() as logs, Trace("/dev/full", "a") as trace:
        for _ in range(3):
            trace.sent(c.TellPeer("b", ASK))
            trace.received("b", ASK)
    assert [(line["event"], line["file"]) for line in logs] == [("the trace ends", "/dev/full")]


def test_a_file_that_cannot_be_had_is_a_wrong_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trace_file: cannot write .*No such file"):
        Trace(str(tmp_path / "none" / "trace.jsonl"), "a")


def test_without_a_file_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Trace(None, "a") as trace:
        trace.sent(c.TellPeer("b", ASK))
        trace.received("b", ASK)
    assert list(tmp_path.iterdir()) == []
