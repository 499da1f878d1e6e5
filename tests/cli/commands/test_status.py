from __future__ import annotations

import io
import json

import pytest
from rich.console import Console, RenderableType

from distkv.cli.commands.status import MAX_REQUESTS, status_tables
from distkv.cli.exit_codes import run
from distkv.cli.live.dashboard import View, render
from distkv.cli.live.samples import Sample
from distkv.cli.main import command
from distkv.wire.messages.to_client import ClusterState, DgfmRunStatus, PlanStatus
from tests.cli.statuses import request, status
from tests.client.fakes import count_up

HOSTILE = "\x1b]0;owned\x07\x9b2J\u202e\r\n"


def test_status_json_and_table(background, capsys):
    cluster = background.start(count_up)
    assert run(command, ["status", "--json", "--address", cluster.address]) == 0
    assert [one["instance_id"] for one in json.loads(capsys.readouterr().out)["instances"]] == ["i0"]
    assert run(command, ["status", "--address", cluster.address]) == 0
    out = capsys.readouterr().out
    assert "borrowed" in out and "i0[0..32)" in out
    assert "+12.5 tokens/s" in out and "-1.5 tokens/s" in out and "creditor" in out


def shown(tables: RenderableType) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=160).print(tables)
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_a_run_of_dgfm_says_what_came_home_and_why_not_all_did():
    runs = (
        DgfmRunStatus(members="a, b", ago_s=1.0, predicted_blocks=8),
        DgfmRunStatus(members="c, d", ago_s=9.0, predicted_blocks=30, home_blocks=20, why="time was up after 5 s"),
    )
    plan = PlanStatus(request_id="r", debtor_id="a", destination="b", num_blocks=2, ago_s=3.0)
    lines = shown(status_tables([], ClusterState(runs=runs, num_runs=2, plans=(plan,), num_plans=1)))
    assert "a, b 1.0 s 8 rBlocks not yet" in lines
    assert "c, d 9.0 s 30 rBlocks 20 rBlocks: time was up after 5 s" in lines
    assert "r a b 2 3.0 s +0.0 tokens/s not yet" in lines


def test_what_lies_elsewhere_is_seen_however_many_wait():
    waiting = tuple(request(f"w{index}", "i0") for index in range(MAX_REQUESTS))
    i1 = status("i1", requests=(request("home", "i1", ("i1", 5)), request("spread", "i1", ("i0", 5), ("i1", 5))))
    lines = shown(status_tables([status("i0", requests=waiting), i1]))
    first = next(index for index, line in enumerate(lines) if line.startswith("request"))
    assert lines[first + 1] == "spread i1 10 50% i0[0..5), i1[5..10)" and lines[first + 2].startswith("home i1")
    assert lines[first + 3] == "w0 i0 0 0% nowhere yet"


def test_a_pipe_has_whole_lines_however_long(background, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    cluster = background.start(count_up)
    fake, name = cluster.instances[0], "f" * 120
    answered = status("i0", requests=(request(name, "i0", ("i0", 5), ("another-instance-of-a-long-name", 7)),))
    monkeypatch.setattr(fake, "status", lambda: answered)
    for words in (["status"], ["top", "--once", "--interval", "0.1"]):
        assert run(command, [*words, "--address", cluster.address]) == 0
        (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(name)]
        assert line.split()[:3] == [name, "i0", "12"] and "another-instance-of-a-long-name" in line


@pytest.mark.parametrize("state", ["unreachable", "dead"])
def test_one_that_does_not_answer_has_no_numbers(state):
    lines = shown(status_tables([status("i0"), status("i1", state=state, running=3)]))
    assert lines[1:] == ["i0 ready 32 32 0 0 0 0 0 0", f"i1 {state} - - - - - - - -"]


@pytest.mark.parametrize("width", [40, 200])
def test_names_from_elsewhere_cannot_move_the_cursor(width):
    found = status(
        "i" + HOSTILE,
        state="ready" + HOSTILE,
        requests=(request("r" + HOSTILE, "i", ("c" + HOSTILE, 5)),),
    )
    views: list[RenderableType] = [status_tables([found])]
    views.append(render(View("title" + HOSTILE, Sample(0.0, (found,)), notes=("note" + HOSTILE,)), width=width))
    for view in views:
        out = io.StringIO()
        Console(file=out, width=width).print(view)
        assert out.getvalue().replace("\n", "").isprintable() and "\\x1b" in out.getvalue()
