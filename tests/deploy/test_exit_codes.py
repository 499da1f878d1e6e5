"""No fatal error ends with 0: the table in docs/operations.md, row by row, with the real daemons.

Elsewhere: a model that cannot be loaded (test_notify), a gManager that refuses (tests/cluster/test_joining), a hung
worker (tests/cluster/lost/test_creditor_lost), a second signal, a drain that takes too long and a parent that is gone
(tests/cli/test_daemon).
"""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import psutil
import pytest

from distkv.cli.daemons import gateway, gmanager, instance
from distkv.cli.exit_codes import run
from tests.deploy.conftest import Start, listening, log_of, told

COMMANDS = {"gmanager": gmanager.command, "instance": instance.command, "gateway": gateway.command}


def last_line(log: Path) -> dict[str, str]:
    line: dict[str, str] = json.loads(log.read_text().splitlines()[-1])
    return line


@pytest.mark.parametrize("section", COMMANDS)
def test_a_port_in_use_is_2(section: str, start: Start, checkpoint: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings = {} if section == "gmanager" else {"model": str(checkpoint)}
        assert start(section, port=port, **settings).wait(60) == 2
    fatal = last_line(log_of(tmp_path, section))
    assert fatal["event"] == "fatal" and str(port) in fatal["reason"]


@pytest.mark.parametrize("section", COMMANDS)
@pytest.mark.parametrize("text", ["nonsense = 1", "port = 70000", "port ="])
def test_a_wrong_file_is_2(section: str, text: str, tmp_path: Path, capsys) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    assert run(COMMANDS[section], ["--config", str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) <= 2


@pytest.mark.parametrize("section", ["instance", "gateway"])
def test_a_model_that_is_not_there_is_2(section: str, tmp_path: Path, capsys) -> None:
    assert run(COMMANDS[section], ["--model", str(tmp_path / "none")]) == 2
    assert "there is no directory" in capsys.readouterr().err


def test_a_tensor_port_in_use_is_not_0(start: Start, checkpoint: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert start("instance", model=str(checkpoint), data_port=port).wait(60) == 1
    fatal = last_line(log_of(tmp_path, "instance"))
    assert fatal["event"] == "fatal" and str(port) in fatal["reason"]


def test_a_killed_worker_is_1(start: Start, checkpoint: Path, tmp_path: Path) -> None:
    with listening(str(tmp_path / "notify")) as sock:
        notify = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        start("gmanager", notify, port=0)
        address = told(sock)["STATUS"].removeprefix("ready at ")
        process = start("instance", notify, model=str(checkpoint), gmanager=address)
        assert told(sock)["READY"] == "1"
        (worker,) = psutil.Process(process.pid).children()
        os.kill(worker.pid, signal.SIGKILL)
        assert process.wait(30) == 1
    fatal = last_line(log_of(tmp_path, "instance"))
    assert fatal["event"] == "fatal" and "killed by SIGKILL" in fatal["reason"]
