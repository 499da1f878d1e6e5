from __future__ import annotations

import io
import json

import pytest
from rich.console import Console, RenderableType

from distkv.cli.commands.status import status_tables
from distkv.cli.exit_codes import run
from distkv.cli.live.dashboard import View, render
from distkv.cli.live.samples import Sample
from distkv.cli.main import command
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


def test_what_is_not_proven_of_a_device_is_said_once():
    told = [status("i0", computes="cuda:0; not tried yet"), status("i1", computes="cuda:0; not tried yet")]
    out = io.StringIO()
    Console(file=out, width=120).print(status_tables([*told, status("i2", computes="cpu")]))
    assert [line for line in out.getvalue().splitlines() if "tried" in line] == ["i0, i1 on cuda:0: not tried yet"]


@pytest.mark.parametrize("width", [40, 200])
def test_names_from_elsewhere_cannot_move_the_cursor(width):
    found = status(
        "i" + HOSTILE,
        state="ready" + HOSTILE,
        computes=f"x; {HOSTILE}",
        requests=(request("r" + HOSTILE, "i", ("c" + HOSTILE, 5)),),
    )
    views: list[RenderableType] = [status_tables([found])]
    views.append(render(View("title" + HOSTILE, Sample(0.0, (found,)), notes=("note" + HOSTILE,)), width=width))
    for view in views:
        out = io.StringIO()
        Console(file=out, width=width).print(view)
        assert out.getvalue().replace("\n", "").isprintable() and "\\x1b" in out.getvalue()
