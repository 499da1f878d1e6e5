"""How fast this machine streams from memory: what a decode step that read everything once would be bound by."""

from __future__ import annotations

import statistics
import time

from distkv.bench.workloads.computing.attention import STREAM_BYTES, streaming
from distkv.kernels.cpu.dispatch import backend_of, choose

READS = 3


class Bandwidth:
    """Reads a buffer that no cache holds with `threads` threads, each its own parts: the native kernel if it is built,
    else torch's sum. Raises ConfigError where the system gives too few threads."""

    def __init__(self, threads: int) -> None:
        choice = choose()
        backend_of(choice).use_threads(threads, ())
        self._read = streaming(choice.native)
        self._read()

    def bytes_per_s(self) -> float:
        """The median of a few reads."""
        times_s = []
        for _ in range(READS):
            started_s = time.perf_counter()
            self._read()
            times_s.append(time.perf_counter() - started_s)
        return STREAM_BYTES / statistics.median(times_s)
