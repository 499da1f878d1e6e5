from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from distkv.bench.harness import line_process
from distkv.bench.harness.line_process import LineProcess

ECHO = "tests.bench.harness.echo"


def test_each_line_is_answered() -> None:
    with LineProcess(ECHO, "2") as process:
        process.tell({"a": [1]})
        assert process.answer(dict) == {"a": [1], "times": 2}
        assert not process.has_answered()
    with pytest.raises(psutil.NoSuchProcess):
        psutil.Process(process.pid)
    process.close()


def test_who_waits_for_one_that_ended_hears_how() -> None:
    with LineProcess(ECHO, "2") as process:
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(EOFError, match=rf"{ECHO} ended with code -9"):
            process.answer(dict)
        assert process.has_answered()


def test_one_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_process, "END_S", 0.1)
    with LineProcess(ECHO, "2") as process:
        process.tell({})
        assert process.answer(dict) == {"times": 2}
        os.kill(process.pid, signal.SIGSTOP)
    assert not psutil.pid_exists(process.pid)


def test_a_command_may_run_it() -> None:
    with LineProcess(ECHO, "3", through=["env", "-u", "NONE"]) as process:
        process.tell({})
        assert process.answer(dict) == {"times": 3}


def test_one_whose_benchmark_is_gone_ends_without_a_word() -> None:
    speaks = "import sys; from distkv.bench.harness.line_process import say; sys.stdin.read(); say(1); print('goes on')"
    process = subprocess.Popen(
        [sys.executable, "-c", speaks], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    assert process.communicate(timeout=30.0)[1] == b"" and process.returncode == 0
