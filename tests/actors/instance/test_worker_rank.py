"""The worker as a child: what it is started with, and what is heard of one that ends at once."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

import distkv
from distkv.actors.instance import worker_rank
from distkv.actors.instance.worker_rank import WorkerRank
from distkv.config import InstanceConfig, build
from distkv.errors import LinkClosed, StartupFailed
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.worker_pipe import WorkerPipe
from tests.cluster.driving import eventually
from tests.waiting import soon

ENVELOPES = EnvelopeFactory("i")


def environment_of(pid: int) -> dict[str, str]:
    """Empty while the process becomes another program."""
    entries = Path(f"/proc/{pid}/environ").read_text(encoding="utf-8").split("\0")
    return dict(entry.split("=", 1) for entry in entries if entry)


@pytest.mark.parametrize(
    ("given", "policy"),
    [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE"), ({"GOMP_SPINCOUNT": "100"}, None)],
)
async def test_torch_threads_do_not_spin_unless_the_user_says_so(
    given: dict[str, str], policy: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    program = tmp_path / "worker"
    program.write_text("#!/bin/sh\nexec sleep 60\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    worker = await WorkerRank.start(build(InstanceConfig, {"model": "m", "threads": 3}), 1, ENVELOPES)
    try:
        environment = await eventually(lambda: environment_of(worker.pid), 20, "it has no environment")
        assert environment["OMP_NUM_THREADS"] == "3"
        assert environment.get("OMP_WAIT_POLICY") == policy
    finally:
        await worker.stop()


async def test_a_worker_that_fails_at_once_is_still_heard(tmp_path: Path) -> None:
    worker = await WorkerRank.start(
        build(InstanceConfig, {"model": str(tmp_path), "cpu_kernels": "torch"}), 1, EnvelopeFactory("i")
    )
    try:
        with pytest.raises(StartupFailed, match=r"config\.json"):
            await worker.wait_ready()
    finally:
        await worker.stop()


async def test_a_worker_that_the_system_does_not_let_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is out of descriptors, or may not run the interpreter, says so without a traceback, also to `distkv up`."""
    program = tmp_path / "python"
    program.write_text("no program", encoding="utf-8")
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(
        StartupFailed, match=r"engine worker did not start: .*/python cannot be started: Permission denied"
    ):
        await WorkerRank.start(build(InstanceConfig, {"model": str(tmp_path)}), 1, EnvelopeFactory("i"))


async def test_a_worker_whose_torch_cannot_be_loaded_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that it needs is not there: the likeliest mistake of an installation with a GPU."""
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(distkv.__file__).parent.parent}")
    worker = await WorkerRank.start(build(InstanceConfig, {"model": "m", "cpu_kernels": "torch"}), 1, ENVELOPES)
    try:
        with pytest.raises(StartupFailed, match=r"cannot be loaded: ImportError: libcudart\.so\.12") as failed:
            await worker.wait_ready()
        assert failed.value.exit_code is None, "it said why itself"
    finally:
        await worker.stop()


async def test_of_a_worker_that_died_without_a_word_its_code_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("import os; os._exit(9)")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(distkv.__file__).parent.parent}")
    worker = await WorkerRank.start(build(InstanceConfig, {"model": "m", "cpu_kernels": "torch"}), 1, ENVELOPES)
    try:
        with pytest.raises(StartupFailed, match="it exited with code 9") as failed:
            await worker.wait_ready()
        assert failed.value.exit_code == 9
    finally:
        await worker.stop()


@pytest.mark.skipif(torch.cuda.is_available(), reason="here a GPU would be used")
async def test_a_worker_without_the_gpu_that_it_should_use(tmp_path: Path) -> None:
    worker = await WorkerRank.start(
        build(InstanceConfig, {"model": str(tmp_path), "device": "cuda:1"}), 1, EnvelopeFactory("i")
    )
    try:
        with pytest.raises(StartupFailed, match="device: cuda:1 is not here: no CUDA device was found"):
            await worker.wait_ready()
    finally:
        await worker.stop()


class Undying:
    """A child in the hands of a driver: killing it ends nothing."""

    pid, returncode = 1, None

    def __init__(self) -> None:
        self.is_killed = False

    def kill(self) -> None:
        self.is_killed = True

    async def wait(self) -> int:
        return await asyncio.get_running_loop().create_future()


async def test_a_worker_that_cannot_be_killed_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_rank, "KILL_S", 0.01)
    child: Any = Undying()
    pipe = WorkerPipe()
    with capture_logs() as lines:
        await soon(WorkerRank(pipe, child, ENVELOPES).stop())
    assert child.is_killed
    assert [(line["event"], line["pid"]) for line in lines] == [("the engine worker does not end", child.pid)]
    with pytest.raises(LinkClosed):
        await pipe.recv()
