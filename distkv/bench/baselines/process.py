"""A baseline's driver as a child process: prompts and answers are JSON lines."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from distkv.bench.baselines.cases import Answer
from distkv.bench.baselines.shared_memory import SharedMemory
from distkv.bench.harness.timing.processes import busy_seconds, family_seconds

START_S = 600.0
STOP_S = 20.0
IDLE_CORES = 0.15
LOOK_S = 0.1
HERE = Path(__file__).resolve().parent


class BaselineFailed(Exception):
    """A baseline did not start, did not answer in time, or answered with an error; str() says which."""


class Loaded(msgspec.Struct, frozen=True):
    """What a driver says once it is ready."""

    settings: dict[str, Any]
    versions: dict[str, str]


class BaselineProcess:
    """`python -m drivers.NAME` in the baseline's environment, ready once it is constructed; `close` it.

    Raises BaselineFailed with the last line that it wrote.
    """

    def __init__(self, python: Path, driver: str, options: Sequence[str], log: Path, start_s: float = START_S) -> None:
        self.command = [str(python), "-m", f"drivers.{driver}", *options]
        self._log = log
        self._shared_memory = SharedMemory()
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=os.environ | {"PYTHONPATH": str(HERE)},
                start_new_session=True,
            )
        try:
            self.loaded = msgspec.convert(self._answer(start_s), Loaded)
            self._shared_memory.note(self.pid)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def generate(self, prompts: Sequence[Sequence[int]], max_tokens: int, patience_s: float) -> Answer:
        """All prompts at once. Raises BaselineFailed, and is closed then, so that it computes nothing any more."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode({"prompts": prompts, "max_tokens": max_tokens}) + b"\n")
            self._process.stdin.flush()
            answer = self._answer(patience_s)
            if "error" in answer:
                raise BaselineFailed(answer["error"])
        except BrokenPipeError:
            self.close()
            raise BaselineFailed(f"it ended: {self._last_words()}") from None
        except BaselineFailed:
            self.close(stop_s=0)
            raise
        return msgspec.convert(answer, Answer)

    def close(self, stop_s: float = STOP_S) -> None:
        """End it within stop_s, all that it started, and the shared memory of these; safe to call twice."""
        process = self._process
        if process.returncode is not None:
            return
        self._shared_memory.note(process.pid)
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        # Not reaped yet, so that its process group keeps its number.
        wait_for_exit(process.pid, stop_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._shared_memory.remove()
        process.stdout.close()

    def _answer(self, patience_s: float) -> Any:
        assert self._process.stdout is not None
        # One line per question: nothing can be left over in the buffer.
        if not select.select([self._process.stdout], [], [], patience_s)[0]:
            raise BaselineFailed(f"no answer within {patience_s:,.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise BaselineFailed(f"it ended: {self._last_words()}")
        return msgspec.json.decode(line)

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")


def wait_for_exit(pid: int, patience_s: float) -> None:
    """Return when the child has ended, or patience has; it is not reaped."""
    deadline_s = time.monotonic() + patience_s
    while time.monotonic() < deadline_s and not has_ended(pid):
        time.sleep(0.02)


def has_ended(pid: int) -> bool:
    """Whether a child has, that is not reaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


class CoresInUse(msgspec.Struct, frozen=True):
    """Processors in use while nobody is being measured: by contenders, and by anything else on the machine."""

    contenders: float
    others: float


def wait_until_idle(roots: Sequence[int], patience_s: float = 5.0) -> CoresInUse:
    """Wait until these processes use next to no CPU, or patience ends; how it was in the last LOOK_S."""
    deadline_s = time.monotonic() + patience_s
    while True:
        before_s, busy_s, started_s = family_seconds(roots), busy_seconds(), time.monotonic()
        time.sleep(LOOK_S)
        elapsed_s = time.monotonic() - started_s
        cores = (family_seconds(roots) - before_s) / elapsed_s
        if cores < IDLE_CORES or time.monotonic() > deadline_s:
            return CoresInUse(cores, max(0.0, (busy_seconds() - busy_s) / elapsed_s - cores))
