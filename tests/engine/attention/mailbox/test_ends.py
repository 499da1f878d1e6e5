"""Mail between two processes, by functions on the host and by Triton's kernels, interpreted: layers, faults."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
import torch

from distkv.kernels.mailbox import MailStatus
from tests.engine.attention.mailbox.ends import (
    DIM,
    FAULTY,
    HEADS,
    ROWS,
    creditor,
    end_over,
    partial_of,
    queries_of,
)

ROOT = Path(__file__).parents[4]


@pytest.fixture(params=["torch", "triton"])
def kernels(request: pytest.FixtureRequest) -> str:
    if request.param == "triton":
        pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")
        if torch.cuda.is_available():
            pytest.skip("compiled kernels reach no memory of the host that is not registered")
    return str(request.param)


@pytest.fixture(scope="module")
def creditors() -> Iterator[subprocess.Popen[str]]:
    """Where creditors' ends are forked."""
    command = [sys.executable, "-m", creditor.__module__]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@contextlib.contextmanager
def peer(
    creditors: subprocess.Popen[str], path: Path, kernels: str, count: int, fault: str = "none"
) -> Iterator[IO[str]]:
    """A creditor's end; what it says."""
    assert creditors.stdin is not None and creditors.stdout is not None
    print(path, kernels, count, fault, file=creditors.stdin, flush=True)
    ready, pid = creditors.stdout.readline().split()
    assert ready == "ready"
    try:
        yield creditors.stdout
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def test_every_layer_of_many_steps_arrives(tmp_path: Path, creditors: subprocess.Popen[str], kernels: str) -> None:
    count = 20
    end, device, _memory = end_over(tmp_path / "mailbox", kernels)
    with peer(creditors, tmp_path / "mailbox", kernels, count) as said:
        out, lse = torch.zeros(ROWS, HEADS, DIM), torch.zeros(ROWS, HEADS)
        for number in range(1, count + 1):
            queries = queries_of(number)
            device.backend.post(end.queries, number, queries)
            device.backend.take(end.partials, number, out, lse, limit_s=20.0)
            expected = partial_of(queries)
            assert torch.equal(out, expected[0]) and torch.equal(lse, expected[1]), number
        assert end.outcome()[0] is MailStatus.OK
        assert said.readline() == "OK\n"


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        ("dies", MailStatus.LATE),
        pytest.param("stalls", MailStatus.LATE, marks=pytest.mark.slow),
        ("skips", MailStatus.SPOILT),
        pytest.param("fails", MailStatus.SPOILT, marks=pytest.mark.slow),
    ],
)
def test_a_fault_ends_the_layers_after_it_at_once(
    tmp_path: Path, creditors: subprocess.Popen[str], kernels: str, fault: str, status: MailStatus
) -> None:
    """Whatever happens at the creditor between queries and partials: what was launched ends, and nothing wrong is
    taken for a partial."""
    end, device, _memory = end_over(tmp_path / "mailbox", kernels)
    with peer(creditors, tmp_path / "mailbox", kernels, 40, fault):
        out, lse = torch.zeros(ROWS, HEADS, DIM), torch.zeros(ROWS, HEADS)
        for number in range(1, FAULTY):
            device.backend.post(end.queries, number, queries_of(number))
            device.backend.take(end.partials, number, out, lse, limit_s=20.0)
        good = out.clone(), lse.clone()
        assert torch.equal(good[0], partial_of(queries_of(FAULTY - 1))[0])
        begun_s = time.monotonic()
        for number in range(FAULTY, 41):
            device.backend.post(end.queries, number, queries_of(number))
            device.backend.take(end.partials, number, out, lse, limit_s=0.3)
        assert time.monotonic() - begun_s < 10.0, "each layer waited as long again"
        assert end.outcome()[0] is status
        assert torch.equal(out, good[0]) and torch.equal(lse, good[1])


def test_a_host_ends_the_wait_of_its_device(tmp_path: Path, kernels: str) -> None:
    end, device, memory = end_over(tmp_path / "mailbox", kernels)
    halting = threading.Timer(0.2, memory.halt)
    halting.start()
    begun_s = time.monotonic()
    device.backend.take(end.partials, 1, torch.ones(3), limit_s=60.0)
    halting.join()
    assert time.monotonic() - begun_s < 20.0 and end.outcome()[0] is MailStatus.HALTED


def test_what_is_there_counts_although_a_host_has_halted(tmp_path: Path, kernels: str) -> None:
    """A partial that had arrived is as good as before: what comes after it is not."""
    end, device, memory = end_over(tmp_path / "mailbox", kernels)
    device.backend.post(end.partials, 3, queries_of(3))
    memory.halt()
    taken = torch.zeros(ROWS, HEADS, DIM)
    device.backend.take(end.partials, 3, taken, limit_s=1.0)
    assert torch.equal(taken, queries_of(3)) and end.outcome()[0] is MailStatus.OK
    device.backend.take(end.partials, 4, taken, limit_s=1.0)
    assert end.outcome()[0] is MailStatus.HALTED


@pytest.mark.parametrize("words", [(1, 0), (4096, 0), (4097, 3), (3, 4096), (9000, 9000)])
def test_bodies_of_any_size(tmp_path: Path, kernels: str, words: tuple[int, int]) -> None:
    from distkv.kernels.mailbox import Lane
    from tests.engine.attention.mailbox.ends import backend_of

    backend, body = backend_of(kernels), torch.full((20_000,), -1, dtype=torch.int32)
    flag, halt, status = torch.zeros(3, 1, dtype=torch.int64)
    lane = Lane(flag, halt, body, status, torch.zeros(1, dtype=torch.int32), torch.zeros(2, dtype=torch.int64))
    sent = [torch.arange(count, dtype=torch.int32) + 10**6 * index for index, count in enumerate(words) if count]
    for number in (5, 6):
        backend.post(lane, number, *sent)
        assert int(flag) == number
        assert torch.equal(body[: sum(words)], torch.cat(sent)) and bool((body[sum(words) :] == -1).all())
        taken = [torch.full_like(one, -2) for one in sent]
        backend.take(lane, number, *taken, limit_s=1.0)
        assert all(torch.equal(one, other) for one, other in zip(sent, taken, strict=True))
