"""Runs a stage to its end or its limit, and says meanwhile what it has found."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from distkv.bench.gpu.stages import Stage, command_of, environment

POLL_S = 1.0
END_WITHIN_S = 10.0
"""After an interrupt, on which benchmarks and pytest still write what they have."""

TAIL_LINES = 60


class Done(msgspec.Struct, frozen=True):
    """How a stage went, so far or at its end. exit_code: None while it runs, and for what was ended or left out, which
    `why` says. output: its last lines."""

    name: str
    command: str = ""
    exit_code: int | None = None
    seconds: float = 0.0
    why: str = ""
    output: str = ""
    report: Any = None


def run(stage: Stage, folder: Path, tables: Path, limit_s: float, tell: Callable[[Done], None]) -> Done:
    """Run it. folder: for its files while it runs. tell: hears of it whenever its report has changed."""
    for program in stage.needs:
        if shutil.which(program) is None:
            return Done(stage.name, why=f"left out: there is no {program}")
    try:
        with _mps(stage.with_mps):
            return _run(stage, folder, tables, limit_s, tell)
    except _NotStarted as error:
        return Done(stage.name, why=f"left out: {error}")


class _NotStarted(Exception):
    """Of what a stage needs besides its command; in words."""


def _run(stage: Stage, folder: Path, tables: Path, limit_s: float, tell: Callable[[Done], None]) -> Done:
    report, log = folder / "report.json", folder / "output.txt"
    report.unlink(missing_ok=True)
    command = command_of(stage, report, tables)
    started_s = time.monotonic()

    def done(exit_code: int | None, why: str = "") -> Done:
        words = shlex.join("python" if word == sys.executable else word for word in stage.command)
        output = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:])
        seconds = round(time.monotonic() - started_s, 1)
        return Done(stage.name, words, exit_code, seconds, why, output, _read(report, has_lines=stage.has_lines))

    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(stage, report),
            start_new_session=True,
        )
    seen_s = 0.0
    try:
        while time.monotonic() - started_s < limit_s:
            with suppress(subprocess.TimeoutExpired):
                return done(process.wait(min(POLL_S, limit_s)))
            changed_s = report.stat().st_mtime if report.exists() else 0.0
            if changed_s != seen_s:
                seen_s = changed_s
                tell(done(None, "it is running"))
    finally:
        _end(process)
    return done(None, f"ended at its limit of {limit_s:.0f} s")


def _end(process: subprocess.Popen[bytes]) -> None:
    """It and all that it started."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_WITHIN_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):  # it hangs in a driver, and the other stages have no time for that
        process.wait(END_WITHIN_S)


def _read(report: Path, *, has_lines: bool) -> Any:
    """Its value, or the list of its lines; None if there is none yet."""
    try:
        body = report.read_bytes()
    except FileNotFoundError:
        return None
    if not has_lines:
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(body)
        return None
    lines = []
    for line in body.splitlines():
        with suppress(msgspec.DecodeError):
            lines.append(msgspec.json.decode(line))
    return lines


@contextmanager
def _mps(wanted: bool) -> Iterator[None]:
    """NVIDIA's multi-process service for the processes that are started meanwhile."""
    if not wanted:
        yield
        return
    control = "nvidia-cuda-mps-control"
    with tempfile.TemporaryDirectory() as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        os.environ.update(places)
        try:
            try:
                subprocess.run([control, "-d"], check=True, timeout=END_WITHIN_S)
            except (OSError, subprocess.SubprocessError) as error:
                raise _NotStarted(f"{control} did not start: {error}") from None
            yield
        finally:
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run([control], input=b"quit\n", timeout=END_WITHIN_S)
            for name in places:
                del os.environ[name]
