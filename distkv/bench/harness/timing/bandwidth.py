"""How fast this machine streams from memory: what a decode step that read everything once would be bound by."""

from __future__ import annotations

import statistics
import time

import torch

from distkv.bench.workloads.computing.attention import STREAM_BYTES, streaming
from distkv.kernels.cpu.dispatch import choose

READS = 3


class Bandwidth:
    """Reads a buffer that no cache holds with `threads` threads, each its own parts: the native kernel if it is built,
    else torch's sum."""

    def __init__(self, threads: int) -> None:
        native = choose().native
        torch.set_num_threads(threads)
        if native is not None:
            native.set_threads(threads, None, 0)
        self._read = streaming(native)
        self._read()

    def bytes_per_s(self) -> float:
        """The median of a few reads."""
        times_s = []
        for _ in range(READS):
            started_s = time.perf_counter()
            self._read()
            times_s.append(time.perf_counter() - started_s)
        return STREAM_BYTES / statistics.median(times_s)
