from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

PROGRAM = """
import sys
from distkv.cli.failures import run
from distkv.cli.up import command
from distkv.client import launch
launch.MODULES = {"gmanager": "tests.client.fake_gmanager", "instance": "tests.client.fake_instance"}
sys.exit(run(command, sys.argv[1:]))
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts `distkv up` with a fake model."""
    started: list[subprocess.Popen[str]] = []

    def up(model: str) -> subprocess.Popen[str]:
        (tmp_path / model).mkdir()
        (tmp_path / model / "config.json").write_text(json.dumps({}))
        arguments = ["--model", str(tmp_path / model), "--instances", "2", "--kv-tokens", "160,320", "--port", "0"]
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments, "--log-dir", str(tmp_path / "logs")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield up
    for process in started:
        process.kill()
        process.communicate()


def lines_until(process: subprocess.Popen[str], word: str) -> list[str]:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if word in line:
            return lines
    raise AssertionError(f"it ended without {word!r}: {lines}")


def pids(lines: list[str]) -> list[int]:
    return [int(line.split("pid ")[1].split(",")[0]) for line in lines if ": pid " in line]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_up_says_where_it_is_and_ends_in_good_order(start, signum):
    up = start("x")
    lines = lines_until(up, "try: distkv generate")
    assert any(line.startswith("ready at tcp://127.0.0.1:") for line in lines)
    instances = pids(lines)
    assert len(instances) == 2
    os.kill(up.pid, signum)
    out, _ = up.communicate(timeout=30)
    assert up.returncode == 0, out
    assert not any(psutil.pid_exists(pid) for pid in instances)


def test_a_dead_instance_is_reported_and_the_last_one_ends_it(start):
    up = start("x")
    first, second = pids(lines_until(up, "try: distkv generate"))
    os.kill(first, signal.SIGKILL)
    assert "killed by SIGKILL; the others go on" in lines_until(up, "instance i0 died")[-1]
    assert psutil.pid_exists(second)
    os.kill(second, signal.SIGKILL)
    lines_until(up, "no instance is left")
    up.communicate(timeout=30)
    assert up.returncode == 1


def test_up_can_be_interrupted_while_it_starts(start):
    up = start("hangs")
    lines_until(up, "starting")
    while len(children := psutil.Process(up.pid).children()) < 3:
        assert up.poll() is None
    up.send_signal(signal.SIGINT)
    out, _ = up.communicate(timeout=30)
    assert up.returncode == 130, out
    assert "Traceback" not in out
    # One that was just being started when the signal came ends by its lifeline.
    _, left = psutil.wait_procs(children, timeout=15)
    assert not left
