"""A peer's driver as a child process, asked in JSON lines."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from distkv.bench.peers.cases import Answer

START_S = 600.0
STOP_S = 20.0
HERE = Path(__file__).resolve().parent


class PeerFailed(Exception):
    """A peer did not start, did not answer in time, or answered with an error; str() says which."""


class Loaded(msgspec.Struct, frozen=True):
    """What a driver says once it is ready."""

    settings: dict[str, Any]
    versions: dict[str, str]


class PeerProcess:
    """`python -m drivers.NAME` in the peer's environment, ready once it is constructed; `close` it.

    Raises PeerFailed with the last line that it wrote.
    """

    def __init__(self, python: Path, driver: str, options: Sequence[str], log: Path, start_s: float = START_S) -> None:
        self.command = [str(python), "-m", f"drivers.{driver}", *options]
        self._log = log
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
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, prompts: Sequence[Sequence[int]], max_tokens: int, patience_s: float) -> Answer:
        """All prompts at once. A peer that failed or was late is of no more use."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode({"prompts": prompts, "max_tokens": max_tokens}) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerFailed(f"it ended: {self._last_words()}") from None
        answer = self._answer(patience_s)
        if "error" in answer:
            raise PeerFailed(answer["error"])
        return msgspec.convert(answer, Answer)

    def close(self) -> None:
        """End it and all that it started."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.close()
            process.wait(STOP_S)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            pass
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
            process.stdout.close()

    def _answer(self, patience_s: float) -> Any:
        assert self._process.stdout is not None
        # One line per question: nothing can be left over in the buffer.
        if not select.select([self._process.stdout], [], [], patience_s)[0]:
            raise PeerFailed(f"no answer within {patience_s:,.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise PeerFailed(f"it ended: {self._last_words()}")
        return msgspec.json.decode(line)

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")


def cpu_s(roots: Sequence[int]) -> float:
    """CPU time of these processes and of all below them, so far."""
    parents, used = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            used[int(entry.name)] = int(fields[11]) + int(fields[12])
    return sum(ticks for pid, ticks in used.items() if _below(pid, parents, roots)) / os.sysconf("SC_CLK_TCK")


def _below(pid: int, parents: Mapping[int, int], roots: Sequence[int]) -> bool:
    while pid in parents:
        if pid in roots:
            return True
        pid = parents[pid]
    return False


def wait_until_idle(roots: Sequence[int], patience_s: float = 5.0, look_s: float = 0.1) -> float:
    """Wait until these processes use next to no CPU; returns how many cores they still used when it gave up or went."""
    deadline_s = time.monotonic() + patience_s
    while True:
        before, started = cpu_s(roots), time.monotonic()
        time.sleep(look_s)
        cores = (cpu_s(roots) - before) / (time.monotonic() - started)
        if cores < 0.15 or time.monotonic() > deadline_s:
            return cores
