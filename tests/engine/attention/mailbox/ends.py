"""Both ends of a mailbox in processes of their own, over the same memory file, as two devices have them.

Run as a program it is where creditors' ends come from: for every line that it reads, it forks one, which is spared the
time that torch takes to load. Such an end answers queries x with partials (2x, row sums), number by number, and makes
of one of them the fault that it is told.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

from distkv.engine.attention.mailbox.ends import MailboxEnd
from distkv.engine.device.cpu import CpuDevice
from distkv.kernels import Backend
from distkv.kernels.mailbox import SPOILT
from distkv.wire.links.memory.mailbox_memory import MailboxMemory

ROWS, HEADS, DIM = 3, 4, 96
QUERY_BYTES, PARTIAL_BYTES = ROWS * HEADS * DIM * 4, ROWS * HEADS * (DIM + 1) * 4
FAULTY = 7
"""The number that a fault is about."""


def backend_of(name: str) -> Backend:
    if name == "triton":
        from distkv.kernels.triton.backend import TritonBackend

        return TritonBackend()
    from distkv.kernels.cpu.torch_backend import TorchBackend

    return TorchBackend()


def end_over(path: Path, name: str) -> tuple[MailboxEnd, CpuDevice, MailboxMemory]:
    size = MailboxMemory.queries_at + -(-QUERY_BYTES // 128) * 128 + -(-PARTIAL_BYTES // 128) * 128
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(fd, size)
    memory = MailboxMemory(mmap.mmap(fd, size), -(-QUERY_BYTES // 128) * 128, -(-PARTIAL_BYTES // 128) * 128)
    os.close(fd)
    device = CpuDevice(backend_of(name))
    return MailboxEnd(memory, torch.frombuffer(memory.view, dtype=torch.uint8), device), device, memory


def queries_of(number: int) -> Tensor:
    return torch.randn(ROWS, HEADS, DIM, generator=torch.Generator().manual_seed(number))


def partial_of(queries: Tensor) -> tuple[Tensor, Tensor]:
    return 2 * queries, queries.sum(-1)


def creditor(path: Path, name: str, count: int, fault: str) -> None:
    """Serves numbers 1 to count."""
    end, device, _memory = end_over(path, name)
    print("ready", os.getpid(), flush=True)
    queries = torch.zeros(ROWS, HEADS, DIM)
    for number in range(1, count + 1):
        device.backend.take(end.queries, number, queries, limit_s=20.0)
        if number == FAULTY and fault == "dies":
            os._exit(9)
        if number == FAULTY and fault == "stalls":
            time.sleep(60)
        if number == FAULTY and fault == "skips":
            end.partials.flag.fill_(number + 1)
            return
        if number == FAULTY and fault == "fails":
            end.partials.status.fill_(1)
        device.backend.post(end.partials, number, *partial_of(queries))
        if number == FAULTY and fault == "fails":
            assert int(end.partials.flag) == SPOILT
            return
    print(end.outcome()[0].name, flush=True)


def fork_creditors() -> None:
    """For each line of `path name count fault` on standard input."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    for line in sys.stdin:
        path, name, count, fault = line.split()
        backend_of(name)  # loaded here, and not by each of them
        if os.fork() == 0:
            creditor(Path(path), name, int(count), fault)
            os._exit(0)


if __name__ == "__main__":
    fork_creditors()
