"""The trace of a process: one line per event, by a thread, and nothing of what users wrote or got."""

from __future__ import annotations

import json
import re
from array import array
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from distkv.actors import trace as module
from distkv.actors.trace import Trace
from distkv.config import GManagerConfig
from distkv.control import commands as c
from distkv.control.cluster.gmanager import GManager
from distkv.control.recording.records import FORMAT, Introduced
from distkv.control.request.answer.output import NoText
from distkv.control.rmanager.state import RManagerSettings
from distkv.control.rmanager.state_machine import RManager
from distkv.errors import ConfigError
from distkv.sim.replay import replay
from distkv.types import SamplingParams
from distkv.wire.messages.from_worker import SeqResult, StepResult
from distkv.wire.messages.to_gmanager import Join
from distkv.wire.messages.to_rmanager import Submit
from tests.control.parts import make_member

SETTINGS = RManagerSettings(instance_id="a", incarnation=1, block_tokens=16, num_blocks=8, vocab_size=320)
SUBMIT = Submit(request_id="r", prompt="my secret", params=SamplingParams(stop="secret", max_tokens=2))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def live(trace: Trace) -> None:
    """An instance serves a request."""
    core = RManager(SETTINGS, NoText, trace.entropy)
    trace.rmanager_begins(SETTINGS)
    member = make_member("a")
    trace.decided(Introduced(member, "model"), 0.5, core.introduce(member, "model"))
    done = StepResult(step_id=1, results=(SeqResult(request_id="r", attempt=0, status="ok", token=47),))
    for now, event in enumerate((c.Tokenized(SUBMIT, array("i", [46, 47]), b"client"), c.FromWorker(done), c.Tick())):
        trace.decided(event, float(now), core.handle(event, float(now)))


def test_one_line_per_event_with_what_came_of_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with Trace(str(path), "a") as trace:
        live(trace)
    began, introduced, submitted, stepped, ticked = lines(path)
    assert began["settings"]["num_blocks"] == 8 and began["format"] == FORMAT
    assert [one["event"]["type"] for one in (introduced, submitted, stepped, ticked)] == [
        "Introduced", "Tokenized", "FromWorker", "Tick",
    ]  # fmt: skip
    assert (submitted["t_s"], submitted["event"]["num_tokens"]) == (0.0, 2)
    step = next(one["body"] for one in submitted["commands"] if one["type"] == "TellWorker")
    assert [(seq["start"], seq["end"]) for seq in step["seqs"]] == [(0, 2)]
    text = path.read_text(encoding="utf-8")
    assert "secret" not in text
    assert not re.search(r"[\[:,]47\b", text), "a token; a seed that is drawn may begin so"
    with path.open("rb") as recorded:
        (one,) = replay(recorded, "a")
    assert one.difference is None and one.num_events == 4 and one.version


def test_a_gmanager_too(tmp_path: Path) -> None:
    path, config = tmp_path / "trace.jsonl", GManagerConfig()
    with Trace(str(path), "gmanager") as trace:
        core = GManager(config.membership, config.advice, incarnation=7)
        trace.gmanager_begins(config, 7)
        event = c.GManagerRequested("a", b"a route", Join(member=make_member("a"), compat="model"))
        trace.decided(event, 1.0, core.handle(event, 1.0))
    with path.open("rb") as recorded:
        (one,) = replay(recorded, "gmanager")
    assert one.difference is None and (one.num_events, one.num_commands) == (1, 4)
    assert "YSByb3V0ZQ" not in path.read_text(encoding="utf-8"), "whoever reads it cannot speak on that connection"


def test_what_raised_is_recorded_without_commands(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with Trace(str(path), "a") as trace:
        trace.rmanager_begins(SETTINGS)
        trace.decided(c.Tick(), 1.0, None)
    assert lines(path)[1]["commands"] is None


def test_a_later_incarnation_writes_on_behind_what_another_could_not_finish(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    for _ in range(2):
        with Trace(str(path), "a") as trace:
            live(trace)
        with path.open("ab") as file:
            file.write(b'{"record":"event","t_')
    with path.open("rb") as recorded:
        assert [one.num_events for one in replay(recorded, "a")] == [4, 4]


def test_a_file_that_takes_no_more_ends_the_trace_and_nothing_else() -> None:
    with capture_logs() as logs, Trace("/dev/full", "a") as trace:
        for _ in range(3):
            live(trace)
    assert [(line["event"], line["file"]) for line in logs] == [("the trace ends", "/dev/full")]


@pytest.mark.parametrize(("name", "said"), [("MOST_UNWRITTEN_BYTES", "slower"), ("MOST_BYTES", "bytes were written")])
def test_a_trace_has_bounds(name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, name, 100)
    with capture_logs() as logs, Trace(str(tmp_path / "trace.jsonl"), "a") as trace:
        live(trace)
    (line,) = logs
    assert line["event"] == "the trace ends" and said in line["problem"]


def test_a_file_that_cannot_be_had_is_a_wrong_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trace_file: cannot write .*No such file"):
        Trace(str(tmp_path / "none" / "trace.jsonl"), "a")


def test_without_a_file_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Trace(None, "a") as trace:
        live(trace)
    assert list(tmp_path.iterdir()) == []
