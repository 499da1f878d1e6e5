"""How fast this machine streams from memory: what a decode step that only read once would be bound by."""

from __future__ import annotations

import statistics
import time
from typing import Any

BUFFER_BYTES = 512 * 2**20
READS = 3


class Bandwidth:
    """Reads a buffer that no cache holds with `threads` threads, each its own part. Torch is loaded here."""

    def __init__(self, threads: int, buffer_bytes: int = BUFFER_BYTES) -> None:
        import torch

        self._torch: Any = torch
        self._threads = threads
        self._buffer = torch.ones(buffer_bytes // 4, dtype=torch.float32)

    def bytes_per_s(self) -> float:
        """The median of a few reads. The threads that torch has in this process are set to ours."""
        self._torch.set_num_threads(self._threads)
        times_s = []
        for _ in range(READS):
            started = time.perf_counter()
            self._buffer.sum()
            times_s.append(time.perf_counter() - started)
        return self._buffer.nbytes / statistics.median(times_s)
