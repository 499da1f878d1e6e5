"""The demo as a user runs it: in a process of its own, whose temporary files are counted afterwards."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from distkv.cli.commands.demo import command
from distkv.cli.exit_codes import run
from distkv.config import DEMO_MODEL, model_dir

SMALL = ("--kv-tokens", "256")
FAKES = """
import sys
from distkv.cli.commands.demo import command
from distkv.cli.exit_codes import run
from distkv.client.local import launch
from distkv.demo.run import walkthrough
launch.MODULES = {"gmanager": "tests.client.local.fake_gmanager", "instance": "tests.client.local.fake_instance"}
walkthrough.DEMO_MODEL = sys.argv.pop(1)
"""
RUN = "sys.exit(run(command, sys.argv[1:]))"
WITH_FAKES = ("-c", FAKES + RUN)
WITH_OTHER_TOKENS = (
    "-c",
    FAKES
    + """
from distkv.demo.run import reference
reference.run = lambda _, prompts, *__: reference.Answer("5.0", ((0, 1, 7, 3),) * len(prompts))
"""
    + RUN,
)
WITHOUT_TRANSFORMERS = ("-c", FAKES + "walkthrough.find_spec = lambda name: None\n" + RUN)
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
            stdin=subprocess.PIPE,
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


def test_it_answers_from_what_no_instance_could_hold_as_transformers_does(start, scratch):
    code, out = end(start(*SMALL))
    assert code == 0, out
    assert re.search(r"tokens equal: all \d+ are those of transformers", out)
    assert re.search(r"that is 2\.[3-9]\d times the KV pool of one instance", out)
    assert out.count("\n  right\n") == 4 and "\n not mentioned\n" in out
    assert out.count("queries and partials ") == 4
    # An answer may come all at once, and end before anybody looks.
    assert len(re.findall(r"first token after \d+\.\d\d s(?:, then [\d.]+ tokens/s)?\n", out)) == 4
    assert out.count("spans in order  i") + out.count("answered before its KV had been looked for") == 4
    assert {name for name in ("i0", "i1", "i2") if f"  {name}  █" in out} == {"i0", "i1", "i2"}
    assert out.endswith("everything is stopped; nothing is left behind\n")
    assert "Traceback" not in out and "\x1b" not in out
    assert not list(scratch.iterdir())


@pytest.mark.slow
def test_a_fact_of_ones_own(start, scratch):
    demo = start(*SMALL, "--ask")
    assert demo.stdin is not None
    demo.stdin.write("The access code of the silver gate is 73915.\nWhat is the access code of the silver gate?\n")
    demo.stdin.flush()
    code, out = end(demo)
    assert code == 0, out
    assert "What is the access code of the silver gate? (in the middle)\n 73915\n" in out


def test_who_may_ask_is_told_what_can_be_asked(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert run(command, ["--ask"]) == 2
    assert "such as: The keeper of the old mill is Greta Holm.\n" in capsys.readouterr().out
    assert run(command, ["--help"]) == 0
    assert "names it in the same words" in " ".join(capsys.readouterr().out.split())


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


@pytest.mark.parametrize("moment", ["starting a gManager", pytest.param("into the document", marks=pytest.mark.slow)])
def test_ctrl_c_leaves_nothing_behind(start, scratch, moment):
    interrupt(start(*SMALL), moment, signal.SIGINT)
    assert not list(scratch.iterdir())


@pytest.fixture
def fake_model(tmp_path: Path) -> Callable[[str], str]:
    """A directory with a tokenizer that no engine reads; what its name says, fake instances do."""

    def make(name: str) -> str:
        (tmp_path / name).mkdir()
        for file in ("config.json", "tokenizer.json"):
            shutil.copy(model_dir(DEMO_MODEL) / file, tmp_path / name)
        return str(tmp_path / name)

    return make


def test_sigterm_while_transformers_works_leaves_nothing_behind(start, scratch, fake_model):
    interrupt(start(fake_model("fake"), program=WITH_FAKES), "asking transformers", signal.SIGTERM)
    assert not list(scratch.iterdir())


def test_an_instance_that_does_not_start_is_named_and_nothing_stays(start, scratch, fake_model):
    code, out = end(start(fake_model("dies"), program=WITH_FAKES))
    assert code == 1
    assert "failed: starting a gManager and 3 instances" in out
    assert "it has no weights" in out and "Traceback" not in out
    assert not list(scratch.iterdir())


def test_other_answers_and_tokens_are_a_failure(start, scratch, fake_model):
    code, out = end(start(fake_model("fake"), program=WITH_OTHER_TOKENS))
    assert code == 1
    assert out.count("WRONG: the document says ") == 4
    assert "tokens DIFFER from transformers 5.0 in float32: What is " in out
    assert "  theirs: [0, 1, 7, 3]\n" in out
    assert not list(scratch.iterdir())


def test_without_transformers_it_says_what_is_not_compared(start, scratch, fake_model):
    code, out = end(start(fake_model("fake"), program=WITHOUT_TRANSFORMERS))
    assert code == 1 and out.count("WRONG: the document says ") == 4
    assert "not compared with transformers, which is not installed" in out and "asking transformers" not in out
    assert not list(scratch.iterdir())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--tokens", "100000"), "tokens: expected from 320 to 2960"),
        (("--tokens", "many"), "expected a whole number such as 256 or 4K"),
        (("--instances", "1"), "--instances"),
        (("--instances", "2", "--kv-tokens", "128"), "kv_tokens: expected pools that hold 320 tokens together"),
    ],
)
def test_mistakes_start_nothing(start, scratch, arguments, told):
    code, out = end(start(*arguments))
    assert code == 2
    assert told in out and "Traceback" not in out
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("typed", ["", "The gate code is 48213.\n"])
def test_an_input_that_ends_before_the_question_is_said(typed, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert run(command, ["--ask"]) == 2
    captured = capsys.readouterr()
    assert captured.out.endswith(": \n")
    assert captured.err.startswith("error: --ask takes a fact and a question")


def test_instances_that_die_under_a_question_are_named_and_nothing_stays(start, scratch, fake_model):
    demo = start(fake_model("stalls"), program=WITH_FAKES)
    until(demo, "into the document")
    for child in psutil.Process(demo.pid).children():
        if "tests.client.local.fake_instance" in child.cmdline():
            child.kill()
    code, out = end(demo)
    assert code == 1, out
    for name in ("i0", "i1", "i2"):
        assert f"instance {name} died: it was killed by SIGKILL" in out
    assert "Traceback" not in out
    assert not list(scratch.iterdir())


@pytest.mark.slow
def test_an_instance_whose_memory_nobody_can_replace_is_named_and_nothing_stays(start, scratch):
    # Two of three cannot hold it, and the third does not come back.
    demo = start("--kv-tokens", "4096")
    until(demo, "into the document")
    (instance,) = [
        child
        for child in psutil.Process(demo.pid).children()
        if {"distkv.cli.daemons.instance", "--instance-id=i1"} <= set(child.cmdline())
    ]
    instance.kill()
    code, out = end(demo)
    assert code == 1, out
    assert "instance i1 died: it was killed by SIGKILL" in out
    assert "Traceback" not in out
    assert not list(scratch.iterdir())
