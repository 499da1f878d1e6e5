from __future__ import annotations

import os
import signal
import sys

import pytest

from distkv.cli.exit_codes import run
from distkv.cli.main import command
from distkv.client.instances import directory
from tests.cli.terminal import on_terminal
from tests.client.fakes import count_up

TOP = [sys.executable, "-m", "distkv.cli.main", "top", "--interval", "0.1", "--address"]


def test_without_a_terminal_it_prints_one_view(background, capsys):
    cluster = background.start(count_up, count_up)
    for once in ([], ["--once"]):
        assert run(command, ["top", *once, "--interval", "0.1", "--address", cluster.address]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == f"distkv at {cluster.address}"
        assert lines[1].startswith("tokens/s: prompt 0, generated 0.0") and "2 running, 0 waiting" in lines[1]
        assert [line.split()[0] for line in lines if "ready" in line] == ["i0", "i1"]


def test_once_needs_a_cluster(monkeypatch, capsys):
    monkeypatch.setattr(directory, "FIRST_CONTACT_S", 0.05)
    assert run(command, ["top", "--once", "--address", "127.0.0.1:9"]) == 1
    assert "no distkv cluster answers" in capsys.readouterr().err


@pytest.mark.parametrize("end", ["q", "SIGINT", "SIGTERM"])
def test_on_a_terminal_it_goes_on_until_it_is_told_to_end(background, end):
    cluster = background.start(count_up, count_up)
    with on_terminal([*TOP, cluster.address]) as terminal:
        terminal.wait_for("i1-r")
        terminal.wait_for("i1-r")
        if end == "q":
            terminal.press("q")
        else:
            os.kill(terminal.process.pid, signal.Signals[end])
        assert terminal.process.wait(timeout=30) == 0


def test_members_that_vanish_are_shown_and_end_nothing(background):
    cluster = background.start(count_up, count_up)
    with on_terminal([*TOP, cluster.address]) as terminal:
        terminal.wait_for("i1 ready")
        background.loop.call(die(cluster.instances[1]))
        terminal.wait_for("i1 unreachable")
        background.loop.call(die(cluster.gmanager))
        terminal.wait_for(f"{cluster.address} does not answer; this is what the instances say")
        terminal.wait_for("i0 ready")
        terminal.press("q")
        assert terminal.process.wait(timeout=30) == 0


def test_a_cluster_that_is_not_there_is_waited_for(background):
    with on_terminal([*TOP, "127.0.0.1:9"]) as terminal:
        terminal.wait_for("asking ...")
        terminal.wait_for("no distkv cluster answers at tcp://127.0.0.1:9")
        terminal.press("Q")
        assert terminal.process.wait(timeout=30) == 0


async def die(server) -> None:
    server.die()
