"""The demo as a user runs it: in a process of its own, whose temporary files are counted afterwards."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

SMALL = ("--kv-tokens", "256", "--max-tokens", "24")
FAKES = """
import sys
from distkv.cli.demo import command
from distkv.cli.failures import run
from distkv.client import launch
launch.MODULES = {"gmanager": "tests.client.fake_gmanager", "instance": "tests.client.fake_instance"}
"""
RUN = "sys.exit(run(command, sys.argv[1:]))"
WITH_FAKES = ("-c", FAKES + RUN)
WITH_OTHER_TOKENS = (
    "-c",
    FAKES
    + """
from distkv.demo import reference
reference.ask = lambda *_: reference.Answer("5.0", 640, (0, 1, 7, 3))
"""
    + RUN,
)
pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """Where the demo puts its temporary files."""
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


@pytest.fixture
def start(scratch: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a demo; its output and errors come in one pipe."""
    started: list[subprocess.Popen[str]] = []

    def demo(*arguments: str, program: tuple[str, ...] = ("-m", "distkv.demo")) -> subprocess.Popen[str]:
        env = os.environ | {"TMPDIR": str(scratch), "PYTHONIOENCODING": "utf-8", "COLUMNS": "200"}
        process = subprocess.Popen(
            [sys.executable, *program, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            env=env,
        )
        started.append(process)
        return process

    yield demo
    for process in started:
        process.kill()
        process.communicate()


def until(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if word in line:
            return
    raise AssertionError(f"it ended without {word!r}: {seen}")


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    children = psutil.Process(process.pid).children(recursive=True)
    out, _ = process.communicate(timeout=200)
    # What it was just starting when it was interrupted ends by itself.
    _, left = psutil.wait_procs(children, timeout=15)
    assert not left
    return process.returncode, out


def test_it_serves_what_no_instance_could_hold_and_equals_transformers(start, scratch):
    code, out = end(start(*SMALL))
    assert code == 0, out
    assert "tokens equal: all 24 are those of transformers" in out
    assert re.search(r"  64\d tokens, 2\.5\d times the KV pool of one instance", out)
    assert "on 3 instances" in out
    for line in ("spans in order  i", "  KV       ", "  queries  ", "time to first token: ", "tokens/s"):
        assert line in out
    assert [name for name in ("i0", "i1", "i2") if f"  {name}  █" in out] == ["i0", "i1", "i2"]
    assert out.endswith("everything is stopped; nothing is left behind\n")
    assert "Traceback" not in out and "\x1b" not in out
    assert not list(scratch.iterdir())


def interrupt(demo: subprocess.Popen[str], moment: str, signum: int) -> str:
    """Send a signal twice when a line has come; returns the rest of the output."""
    until(demo, moment)
    demo.send_signal(signum)
    demo.send_signal(signum)
    code, out = end(demo)
    assert code == 130, out
    assert out.endswith("interrupted; everything is stopped\n")
    assert "Traceback" not in out
    return out


@pytest.mark.parametrize("moment", ["starting a gManager", "streaming"])
def test_ctrl_c_leaves_nothing_behind(start, scratch, moment):
    interrupt(start("--kv-tokens", "256", "--max-tokens", "200"), moment, signal.SIGINT)
    assert not list(scratch.iterdir())


def test_sigterm_while_transformers_works_leaves_nothing_behind(start, scratch, tmp_path):
    demo = start("--keep-checkpoint", str(tmp_path / "fake"), program=WITH_FAKES)
    interrupt(demo, "asking transformers", signal.SIGTERM)
    assert not list(scratch.iterdir())


def test_an_instance_that_does_not_start_is_named_and_nothing_stays(start, scratch, tmp_path):
    kept = tmp_path / "dies"
    code, out = end(start("--keep-checkpoint", str(kept), program=WITH_FAKES))
    assert code == 1
    assert "failed: starting a gManager and 3 instances" in out
    assert "it has no weights" in out and "Traceback" not in out
    assert not list(scratch.iterdir())
    assert (kept / "model.safetensors").is_file()


def test_other_tokens_than_those_of_transformers_are_a_failure(start, scratch, tmp_path):
    demo = start("--keep-checkpoint", str(tmp_path / "fake"), "--max-tokens", "4", program=WITH_OTHER_TOKENS)
    code, out = end(demo)
    assert code == 1
    assert "tokens DIFFER from transformers 5.0 in float32, at token 2 of 4" in out
    assert "  ours:   [2, 3]\n  theirs: [7, 3]\n" in out
    assert not list(scratch.iterdir())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--max-tokens", "100000"), "max_tokens: expected at most"),
        (("--keep-checkpoint", "."), "exists and is no empty directory"),
        (("--instances", "1"), "--instances"),
    ],
)
def test_mistakes_start_nothing(start, scratch, arguments, told):
    code, out = end(start(*arguments))
    assert code == 2
    assert told in out and "Traceback" not in out
    assert not list(scratch.iterdir())


def test_an_instance_that_dies_meanwhile_is_named_and_nothing_stays(start, scratch):
    demo = start("--kv-tokens", "256", "--max-tokens", "200")
    until(demo, "streaming")
    (instance,) = [
        child
        for child in psutil.Process(demo.pid).children()
        if {"distkv.cli.instance", "--instance-id=i1"} <= set(child.cmdline())
    ]
    instance.kill()
    code, out = end(demo)
    assert code == 1, out
    assert "failed: streaming" in out and "instance i1 died: it was killed by SIGKILL" in out
    assert "Traceback" not in out
    assert not list(scratch.iterdir())
