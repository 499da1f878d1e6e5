"""The Device of one CUDA GPU: streams, events, pinned memory, graphs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from distkv.engine.device.device import Captured, Device, Missing, PendingCopy, Run
from distkv.types import CpuKernels

STEP_BYTES = 3 * 2**29
"""Kept free beside a pool whose size nobody chose: activations, logits, workspaces and what graphs keep."""

_INSTALL = "in distkv's checkout: pip install '.[gpu]'"
_ALIGNED_BYTES = 16
_URGENT = -1


@dataclass(frozen=True)
class _CudaCopy:
    hosts: tuple[Tensor, ...]
    arrived: torch.cuda.Event

    def wait(self) -> tuple[Tensor, ...]:
        """See PendingCopy."""
        self.arrived.synchronize()
        return self.hosts


class CudaDevice(Device):
    """See Device. Entering a stream makes this GPU the thread's current one."""

    is_async = True
    why = "there is a CUDA device"

    def __init__(self, index: int) -> None:
        from distkv.kernels.triton.backend import TritonBackend

        self.place = torch.device("cuda", index)
        self.backend = TritonBackend(index=index)
        self._aside = torch.cuda.Stream(self.place)  # type: ignore[no-untyped-call]
        self._graph_memory: dict[int, Any] = {}

    @classmethod
    def missing(cls, index: int) -> Missing | None:
        """See Device."""
        if not torch.cuda.is_available():
            built = "" if torch.version.cuda else "; this torch was built without CUDA"
            return Missing(f"no CUDA device was found{built}", "use --device cpu")
        if index >= (count := torch.cuda.device_count()):
            return Missing(f"the last CUDA device is cuda:{count - 1}", "use one that is there", is_idle=True)
        if find_spec("triton") is None:
            return Missing("Triton is not installed", _INSTALL, is_idle=True)
        return None

    @classmethod
    def open(cls, index: int, cpu_kernels: CpuKernels) -> CudaDevice:
        """See Device."""
        return cls(index)

    def to_device(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """See Device."""
        if len(tensors) == 1 and tensors[0].is_pinned():
            return (tensors[0].to(self.place, non_blocking=True),)
        places = list(_packed(tensors))
        pinned = self.host(places[-1].stop if places else 0)
        for tensor, place in zip(tensors, places, strict=True):
            _part(pinned, place, tensor).copy_(tensor)
        there = pinned.to(self.place, non_blocking=True)
        return tuple(_part(there, place, tensor) for tensor, place in zip(tensors, places, strict=True))

    def to_host(self, *tensors: Tensor, aside: bool = False) -> PendingCopy:
        """See Device."""
        stream = here = torch.cuda.current_stream(self.place)
        if aside:
            stream = self._aside
            stream.wait_stream(here)
        hosts = tuple(torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors)
        with torch.cuda.stream(stream):
            for host, tensor in zip(hosts, tensors, strict=True):
                host.copy_(tensor, non_blocking=True)
                if aside:
                    tensor.record_stream(stream)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record(stream)
        return _CudaCopy(hosts, arrived)

    def host(self, num_bytes: int) -> Tensor:
        """See Device. Pinned; torch keeps what is given back for the next one."""
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def synchronize(self) -> None:
        """See Device."""
        torch.cuda.current_stream(self.place).synchronize()

    def stream(self, *, urgent: bool = False) -> AbstractContextManager[object]:
        """See Device."""
        stream = torch.cuda.Stream(self.place, priority=_URGENT if urgent else 0)  # type: ignore[no-untyped-call]
        return torch.cuda.stream(stream)

    def kv_budget(self, share: float) -> int:
        """See Device. What is left of the share, less what a step needs for a while; never more than is free."""
        self.synchronize()
        torch.cuda.empty_cache()
        free_bytes, total_bytes = torch.cuda.mem_get_info(self.place)
        taken_bytes = torch.cuda.memory_reserved(self.place)
        return min(int(share * total_bytes) - taken_bytes, free_bytes) - STEP_BYTES

    def capture(self, run: Run, group: int = 0) -> Captured:
        """See Device."""
        if group not in self._graph_memory:
            self._graph_memory[group] = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        self.synchronize()
        # Other threads serve peers meanwhile: only this thread's calls must be fit for capture.
        graph.capture_begin(pool=self._graph_memory[group], capture_error_mode="thread_local")
        try:
            results = run()
        except Exception as error:
            # The capture has to end, and may complain of the same.
            with suppress(RuntimeError):
                graph.capture_end()
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        graph.capture_end()
        return Captured(graph.replay, results)


def _packed(tensors: tuple[Tensor, ...]) -> Iterator[slice]:
    """Where the bytes of each lie when they follow each other, aligned."""
    end = 0
    for tensor in tensors:
        start = -(-end // _ALIGNED_BYTES) * _ALIGNED_BYTES
        end = start + tensor.nbytes
        yield slice(start, end)


def _part(packed: Tensor, place: slice, like: Tensor) -> Tensor:
    return packed[place].view(like.dtype).view(like.shape)
