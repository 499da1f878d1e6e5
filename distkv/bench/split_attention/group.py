"""The processes that a request's attention is split over, seen from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import IO, Self, cast

import msgspec
import torch
from torch import Tensor

from distkv.bench.split_attention.network import Place
from distkv.bench.split_attention.process import ReachedBy, Told, Took, Turn
from distkv.bench.split_attention.split import Split
from distkv.bench.split_attention.ways import DIST, Link, Name


class Step(msgspec.Struct, frozen=True):
    """What came of one. seconds: of the slowest process. sent_bytes: by all of them. outputs: float32 [layers, rows,
    heads, dim] as each process has them, if they were wanted; one that has no rows has none."""

    seconds: float
    sent_bytes: int
    outputs: Sequence[Tensor]


class Group:
    """All processes of a split, each on a core as far as there are enough; ends with its context. places: of their
    shaped links, if there are any."""

    def __init__(self, split: Split, places: Sequence[Place] = ()) -> None:
        self.split = split
        cores = sorted(os.sched_getaffinity(0))
        with ExitStack() as stack:
            stack.callback(os.sched_setaffinity, 0, cores)
            self._processes: list[subprocess.Popen[bytes]] = []
            for number in range(split.processes):
                core = cores[number % len(cores)] if len(cores) > 1 else None
                # It begins there: so do all its threads.
                os.sched_setaffinity(0, cores if core is None else [core])
                self._processes.append(_started(Told(split, number, core, places[number] if places else None)))
        try:
            reached = [msgspec.json.decode(self._answer(process), type=ReachedBy) for process in self._processes]
            self._tell(self._processes, msgspec.json.encode(reached))
            for process in self._processes:
                self._answer(process)
        except BaseException:
            self.close()
            raise

    def step(self, way: Name, link: Link, layers: int | None = None, *, with_outputs: bool = False) -> Step:
        """One step of a way, in so many layers; in all by default."""
        turn = Turn(way, link, self.split.layers if layers is None else layers, with_outputs)
        # Creditors serve without being told.
        players = self._processes[:1] if way == DIST else self._processes
        self._tell(players, msgspec.json.encode(turn))
        took = [msgspec.json.decode(self._answer(process), type=Took) for process in players]
        shape = self.split.layers, -1, self.split.heads, self.split.dim
        outputs = [torch.frombuffer(bytearray(one.outputs), dtype=torch.float32) for one in took if one.outputs]
        seconds, sent_bytes = max(one.seconds for one in took), sum(one.sent_bytes for one in took)
        return Step(seconds, sent_bytes, [one.view(shape) for one in outputs])

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            _pipe(process.stdin).close()
            process.terminate()
            process.wait()
            _pipe(process.stdout).close()

    def _tell(self, processes: Sequence[subprocess.Popen[bytes]], line: bytes) -> None:
        for process in processes:
            _pipe(process.stdin).write(line + b"\n")
            _pipe(process.stdin).flush()

    def _answer(self, process: subprocess.Popen[bytes]) -> bytes:
        line = _pipe(process.stdout).readline()
        if not line:
            raise RuntimeError(f"a process ended with code {process.wait()}")
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _started(told: Told) -> subprocess.Popen[bytes]:
    module = "distkv.bench.split_attention.process"
    command = [sys.executable, "-P", "-m", module, msgspec.json.encode(told).decode()]
    # Who interrupts the benchmark interrupts it alone; it ends them.
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    return cast(IO[bytes], pipe)
