"""What `bin/gpu-check` runs, in the order of what it teaches: a machine that is lent may be gone at any time."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from distkv.bench.gpu.outcomes import FIRST, VARIABLE

REPORT, TABLES = "{json}", "{tables}"
"""In a command: the file for its report, the directory of tuned tables."""

TUNED = "32/8/128,64/8/128"
"""Shapes of heads whose configs are measured: those of most models of 8B and of 70B."""

MEASURED = f"{TUNED},32/32/128,12/4/64"

TESTS_FIRST = (
    "tests/engine/device/",
    "tests/engine/step/test_triton.py",
    "tests/kernels/triton/attention/",
    "tests/kernels/triton/",
    "tests/actors/worker/",
    "tests/kernels/",
)
"""The device and whole steps, then kernels."""

_PLUGINS = ("pytest_asyncio.plugin", "pytest_timeout", "xdist.plugin", "distkv.bench.gpu.outcomes")


class Stage(msgspec.Struct, frozen=True):
    """A command that is run. limit_s: when it is ended. While it runs it may write a report: a JSON value, or lines of
    them where has_lines. needs: programs without which it is left out. with_mps: NVIDIA's multi-process service runs
    meanwhile."""

    name: str
    command: tuple[str, ...]
    limit_s: float
    needs: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    with_mps: bool = False
    has_lines: bool = False


def stages_of(device: str) -> tuple[Stage, ...]:
    """All of them, within 25 minutes; without a GPU the first two, with Triton's interpreter."""
    python = sys.executable
    bench = (python, "-m", "distkv.cli.main", "bench")
    smoke = (python, "-m", "distkv.bench.gpu.smoke", "--device", device, "--json", REPORT)
    if device == "cpu":
        interpreted = {"TRITON_INTERPRET": "1"}
        tests = _pytest("not gpu and not slow", min(8, len(os.sched_getaffinity(0))), "tests/kernels/triton")
        return (
            Stage("smoke", smoke, 120, env=interpreted, has_lines=True),
            Stage("tests", tests, 300, env=interpreted, has_lines=True),
        )
    here = ("--device", device, "--json", REPORT)
    step = (*bench, "step", *here, "--rounds", "3", "--batches", "1,8,64")
    # Torch and Triton try calls of CUDA that may fail: such are no errors of ours.
    sanitizer = ("compute-sanitizer", "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "9")
    tests = _pytest("gpu", 8, "tests/kernels", "tests/engine", "tests/actors/worker", "tests/bench/gpu")
    cluster = _pytest("gpu", 1, "tests/cluster/test_gpu.py")
    return (
        Stage("smoke", smoke, 90, has_lines=True),
        Stage("tests", tests, 300, env={FIRST: ",".join(TESTS_FIRST)}, has_lines=True),
        Stage(
            "sanitizer",
            (*sanitizer, *smoke, "--only", "split decode,scatter"),
            120,
            needs=sanitizer[:1],
            # A cache of memory hides what is read behind its end.
            env={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
            has_lines=True,
        ),
        Stage("step 1b", (*step, "--model", "1b"), 90),
        Stage("step 8b", (*step, "--model", "8b"), 90),
        Stage("linear layers", (*bench, "linear", *here, "--rounds", "3", "--models", "1b,8b"), 30),
        Stage("attention", (*bench, "attention", *here, "--rounds", "3", "--shapes", MEASURED), 150),
        Stage(
            "tuning",
            (*bench, "attention", *here, "--rounds", "3", "--shapes", TUNED, "--tune-for", "150", "--tables", TABLES),
            240,
        ),
        Stage("cluster", cluster, 180, has_lines=True),
        Stage("cluster with MPS", cluster, 150, needs=("nvidia-cuda-mps-control",), with_mps=True, has_lines=True),
        Stage("profiled step", (python, "-m", "distkv.bench.gpu.profiled_step", *here), 60),
    )


def environment(stage: Stage, report: Path) -> dict[str, str]:
    """Of a stage's process."""
    # What else is installed with pytest there, and fails with warnings as errors, stays out.
    tests = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", VARIABLE: str(report), "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **tests, **stage.env}


def command_of(stage: Stage, report: Path, tables: Path) -> list[str]:
    """Its command as it is run."""
    places = {REPORT: str(report), TABLES: str(tables)}
    return [places.get(word, word) for word in stage.command]


def _pytest(marks: str, workers: int, *paths: str) -> tuple[str, ...]:
    plugins = [word for name in _PLUGINS for word in ("-p", name)]
    shared = ("-n", str(workers)) if workers > 1 else ()
    # Packages of that machine may warn of what nobody here can mend.
    quiet = ("-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default")
    return (sys.executable, "-m", "pytest", *plugins, *shared, *quiet, "-m", marks, *paths)
