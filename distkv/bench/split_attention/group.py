"""The processes that a request's attention is split over, seen from outside."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import msgspec
import torch
from torch import Tensor

from distkv.bench.harness.line_process import LineProcess
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
    """All processes of a split, the first of them in front."""

    def __init__(self, split: Split, processes: Sequence[LineProcess]) -> None:
        self.split = split
        self._processes = processes

    def step(self, way: Name, link: Link, layers: int | None = None, *, with_outputs: bool = False) -> Step:
        """One step of a way, in so many layers; in all by default."""
        turn = Turn(way, link, self.split.layers if layers is None else layers, with_outputs)
        # Creditors serve without being told.
        players = self._processes[:1] if way == DIST else self._processes
        for process in players:
            process.tell(turn)
        took = [process.answer(Took) for process in players]
        shape = self.split.layers, -1, self.split.heads, self.split.dim
        outputs = [torch.frombuffer(bytearray(one.outputs), dtype=torch.float32) for one in took if one.outputs]
        seconds, sent_bytes = max(one.seconds for one in took), sum(one.sent_bytes for one in took)
        return Step(seconds, sent_bytes, [one.view(shape) for one in outputs])


@contextmanager
def started(split: Split, places: Sequence[Place] = ()) -> Iterator[Group]:
    """Its processes, each on a core as far as there are enough. places: of their shaped links, if there are any."""
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        processes = []
        try:
            for number in range(split.processes):
                core = cores[number % len(cores)] if len(cores) > 1 else None
                # It begins there: so do all its threads.
                os.sched_setaffinity(0, cores if core is None else [core])
                told = msgspec.json.encode(Told(split, number, core, places[number] if places else None)).decode()
                processes.append(stack.enter_context(LineProcess("distkv.bench.split_attention.process", told)))
        finally:
            os.sched_setaffinity(0, cores)
        reached = [process.answer(ReachedBy) for process in processes]
        for process in processes:
            process.tell(reached)
        for process in processes:
            process.answer(dict)
        yield Group(split, processes)
