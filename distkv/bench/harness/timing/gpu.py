"""Timing on a CUDA device: replays of a captured graph between two events, so that launching costs nothing."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from distkv.engine.device.cuda_graphs import GraphMemory
from distkv.errors import ConfigError

Work = Callable[[], object]

COPY_BYTES = 1 << 30
WARMUPS = 3
LEAST_S = 0.02
"""What one sample lasts at least: shorter ones are mostly the events' own spread."""


SHORT_S, SAMPLES = 0.005, 3
"""Where many things are timed: how long a sample is, and how many there are."""


def gpu_of(name: str) -> torch.device:
    """The device to measure on. Raises ConfigError when it is not here."""
    device = torch.device(name)
    if device.type != "cuda" or (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError("device", f"{name} is not here", "this measures on a CUDA device")
    return device


def gpu_facts(device: torch.device) -> dict[str, Any]:
    """Name, memory, multiprocessors and CUDA's version."""
    if device.type != "cuda":
        return {"gpu": "none"}
    found = torch.cuda.get_device_properties(device)
    return {
        "gpu": found.name,
        "gpu memory_gib": round(found.total_memory / 2**30, 1),
        "multiprocessors": found.multi_processor_count,
        "cuda": torch.version.cuda,
    }


class Clock(Protocol):
    """How long work takes."""

    @property
    def not_captured(self) -> Mapping[str, int]:
        """Why work is timed with what it costs to launch it, reasons by number; nothing where that is nothing."""

    def ready(self, work: Work) -> Work:
        """`work` in the form in which it is timed."""

    def seconds(self, work: Work, repeats: int) -> float:
        """Of so many calls, one after another."""


class GpuClock:
    """Times work by events on the current device. not_captured: why some of it could not be, the reasons by number."""

    def __init__(self) -> None:
        self.not_captured: Counter[str] = Counter()

    def ready(self, work: Work) -> Work:
        """A graph's replay; `work` itself, with the cost of launching it, where it cannot be captured."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUPS):
                work()
            # What the cache keeps for other streams is no use to this graph.
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            try:
                graph, kept = GraphMemory().captured(work)
            except RuntimeError as error:
                self.not_captured[str(error).partition("\n")[0]] += 1
                return work

        def replay() -> object:
            graph.replay()
            return kept

        return replay

    def seconds(self, work: Work, repeats: int) -> float:
        """See Clock."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(repeats):
            work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


class HostClock:
    """Times work that is done when its call returns."""

    not_captured: Mapping[str, int] = {}

    def ready(self, work: Work) -> Work:
        """As it is."""
        return work

    def seconds(self, work: Work, repeats: int) -> float:
        """See Clock."""
        started_s = time.perf_counter()
        for _ in range(repeats):
            work()
        return time.perf_counter() - started_s


def clock_of(device: torch.device) -> Clock:
    """Of what is measured there."""
    return GpuClock() if device.type == "cuda" else HostClock()


def timed_rate(clock: Clock, work: Work, amount: float, case: str, least_s: float = LEAST_S) -> Mapping[str, float]:
    """`amount` per call over the time of a call; what `alternate` wants of a variant."""
    repeats = max(1, round(least_s / max(clock.seconds(work, 1), 1e-6)))
    return {case: amount * repeats / clock.seconds(work, repeats)}


def timed_milliseconds(clock: Clock, work: Work) -> float:
    """The median of a few samples of one call."""
    ready = clock.ready(work)
    repeats = max(1, round(SHORT_S / max(clock.seconds(ready, 1), 1e-6)))
    return statistics.median(clock.seconds(ready, repeats) for _ in range(SAMPLES)) / repeats * 1e3


def free_bytes(device: torch.device) -> int:
    """Of the device's memory, with what torch keeps of it for the next tensors; of a host, what is available."""
    if device.type != "cuda":
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def copying(device: torch.device, num_bytes: int = COPY_BYTES) -> Work:
    """Copying so many bytes within the device, each of which is read and written. Not to be captured: the same copy as
    a node of a graph is left to copy engines, which on an H200 take 1.6 times as long."""
    source = torch.empty(num_bytes, dtype=torch.uint8, device=device).random_(0, 255)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)
