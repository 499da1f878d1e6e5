"""What memory gives one core of this machine, and two that read at once: the limit of a decode step that is split."""

from __future__ import annotations

import mmap
import os
import threading
import time
from array import array

import numpy as np

from distkv.bench.harness.alternate import Samples
from distkv.wire.links.memory.addressed import Addressed
from distkv.wire.links.memory.mapped_copy import checksums_of

READ = "memory read at once, GB/s"
BY_ONE, BY_TWO = "by one core", "by two cores"
BLOCK_BYTES = 2**17
MOST_BYTES = 2**28
"""Of each reader: far beyond any cache."""


def memory_reads(cores: tuple[int, int], rounds: int, num_bytes: int = MOST_BYTES) -> Samples:
    """Rates of the native call that checksums blocks, which waits for memory only; by turns. Nothing without it."""
    blocks = num_bytes // BLOCK_BYTES
    memory = [mmap.mmap(-1, num_bytes) for _ in cores]
    try:
        for one in memory:
            np.frombuffer(one, dtype=np.uint8)[:] = 1
        pools = [Addressed(memoryview(one)) for one in memory]
        if checksums_of(pools[0], array("q", [0]), BLOCK_BYTES) is None:
            return {}
        found: dict[str, list[float]] = {BY_ONE: [], BY_TWO: []}
        for _ in range(rounds):
            for name, count in ((BY_ONE, 1), (BY_TWO, 2)):
                took_s = _took_s(pools[:count], cores, blocks)
                found[name].append(count * num_bytes / took_s / 1e9)
        return {READ: found}
    finally:
        pools.clear()
        for one in memory:
            one.close()


def _took_s(pools: list[Addressed], cores: tuple[int, int], blocks: int) -> float:
    """Seconds that each of these takes at once, the longest of them."""
    slots, took_s = array("q", range(blocks)), [0.0] * len(pools)
    begin = threading.Barrier(len(pools))

    def read(index: int) -> None:
        os.sched_setaffinity(0, [cores[index]])  # of this thread
        begin.wait()
        started_s = time.perf_counter()
        checksums_of(pools[index], slots, BLOCK_BYTES)
        took_s[index] = time.perf_counter() - started_s

    threads = [threading.Thread(target=read, args=(index,)) for index in range(len(pools))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(took_s)
