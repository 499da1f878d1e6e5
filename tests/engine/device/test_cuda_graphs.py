"""Captures as torch 2.11 has them, whose allocator is a model here: what it refuses, what a failure leaves in it."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from distkv.bench.harness.timing.gpu import GpuClock
from distkv.engine.device import cuda_graphs
from distkv.engine.device.cuda_graphs import GraphMemory

CALLED_OFF = "operation not permitted when stream is capturing"


class Allocator:
    """users: how many graphs each handle has. recording: the handles that allocations go to."""

    def __init__(self) -> None:
        self.users: dict[int, int] = {}
        self.recording: list[int] = []
        self.handles = itertools.count()
        self.is_called_off = False

    def begin(self, handle: int) -> None:
        if self.users.get(handle) == 0:
            raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")
        if handle in self.recording:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        self.users[handle] = self.users.get(handle, 0) + 1
        self.recording.append(handle)

    def end(self, _device: int, handle: int) -> None:
        if handle not in self.recording:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.recording.remove(handle)

    def empty_cache(self) -> None:
        if self.recording:
            raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")

    def call_off(self) -> None:
        """What a call that waits for the device does to a capture."""
        self.is_called_off = True
        raise RuntimeError(CALLED_OFF)


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    found = Allocator()

    class Graph:
        def __init__(self) -> None:
            self.has_ended = False

        def capture_begin(self, pool: int, capture_error_mode: str) -> None:
            assert capture_error_mode == "thread_local", "other threads go on"
            self.handle = pool
            found.begin(pool)

        def capture_end(self) -> None:
            if found.is_called_off:
                found.is_called_off = False
                raise RuntimeError("operation failed due to a previous error during capture")
            found.end(0, self.handle)
            self.has_ended = True

        def replay(self) -> None:
            assert self.has_ended

        def __del__(self) -> None:
            if self.has_ended:
                found.users[self.handle] -= 1

    stream = SimpleNamespace(synchronize=lambda: None, wait_stream=lambda _other: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(found.handles))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", found.empty_cache)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _stream: torch.inference_mode(mode=False))
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", found.end, raising=False)
    monkeypatch.setattr(cuda_graphs, "_failed", [])
    return found


def test_graphs_of_a_group_share_memory(allocator: Allocator) -> None:
    memory = GraphMemory()
    kept = [memory.captured(lambda: 7, group) for group in (0, 1, 0, 0)]
    assert [results for _, results in kept] == [7] * 4
    assert allocator.users == {0: 3, 1: 1} and not allocator.recording


def test_a_group_whose_graphs_are_gone_begins_anew(allocator: Allocator) -> None:
    """As where one measurement after another captures on a device: torch refuses memory that had its last graph."""
    memory = GraphMemory()
    for _ in range(3):
        memory.captured(lambda: None)
        gc.collect()
    assert allocator.users == {0: 0, 1: 0, 2: 0}


@pytest.mark.parametrize(
    ("fails", "said"),
    [(lambda _: 1 // 0, "ZeroDivisionError: "), (Allocator.call_off, f"RuntimeError: {CALLED_OFF}")],
    ids=["in Python", "in CUDA"],
)
def test_nothing_is_left_of_a_capture_that_fails(
    allocator: Allocator, fails: Callable[[Allocator], object], said: str
) -> None:
    """The cache can be emptied, and the next capture of the group is made."""
    memory = GraphMemory()
    kept = memory.captured(lambda: None)
    with pytest.raises(RuntimeError, match=said):
        memory.captured(lambda: fails(allocator))
    allocator.empty_cache()
    again = memory.captured(lambda: None)
    assert not allocator.recording and kept is not again


def test_a_capture_that_is_called_off_unseen(allocator: Allocator) -> None:
    """What ran in it raised nothing; it is known when the capture ends."""

    def run() -> None:
        allocator.is_called_off = True

    with pytest.raises(RuntimeError, match="previous error during capture"):
        GraphMemory().captured(run)
    allocator.empty_cache()


def test_an_interrupt_ends_the_capture_and_stays_one(allocator: Allocator) -> None:
    def run() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        GraphMemory().captured(run)
    allocator.empty_cache()


def test_what_cannot_be_captured_is_timed_as_it_is_and_costs_no_other_figure(allocator: Allocator) -> None:
    clock, calls = GpuClock(), itertools.count()

    def work() -> None:
        if next(calls) == 3:  # behind the calls that warm up
            allocator.call_off()

    assert clock.ready(work) is work
    assert dict(clock.not_captured) == {f"RuntimeError: {CALLED_OFF}": 1}
    other = clock.ready(lambda: None)
    other()
    assert len(clock.not_captured) == 1
