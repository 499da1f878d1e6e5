"""The Device of one CUDA GPU: streams, events, pinned memory, graphs."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from distkv.engine.device.claims import claim
from distkv.engine.device.cuda_graphs import GraphMemory
from distkv.engine.device.cuda_streams import QUEUES, streams_of
from distkv.engine.device.device import Captured, Device, Missing, PendingCopy, Run
from distkv.engine.device.shared_memory.driver import Driver, DriverError
from distkv.engine.device.shared_memory.memory import MemorySharing
from distkv.types import AttentionBackend, CpuKernels

STEP_BYTES = 3 * 2**29
"""Kept free beside a pool whose size nobody chose: activations, logits, workspaces and what graphs keep."""

_TRITON_IS_AUTO = "a recorded run shows its decode to be as fast as other libraries'"
_INSTALL = "in distkv's checkout: pip install '.[gpu]'"
_ALIGNED_BYTES = 16
_PORTABLE, _MAPPED = 1, 2
"""cudaHostRegister's flags: for all contexts, and for kernels."""


@dataclass(frozen=True)
class _CudaCopy:
    """held: what is copied, whose memory nobody else may have meanwhile."""

    hosts: tuple[Tensor, ...]
    held: tuple[Tensor, ...]
    arrived: torch.cuda.Event

    @property
    def is_done(self) -> bool:
        """See PendingCopy."""
        return bool(self.arrived.query())  # type: ignore[no-untyped-call]

    def wait(self) -> tuple[Tensor, ...]:
        """See PendingCopy."""
        self.arrived.synchronize()
        return self.hosts


class CudaDevice(Device):
    """See Device. Entering a stream makes this GPU the thread's current one."""

    is_async = True

    def __init__(self, index: int, attention: AttentionBackend = "auto") -> None:
        """Raises ConfigError where the library of an attention backend is not here."""
        from distkv.kernels.triton.backend import TritonBackend
        from distkv.kernels.triton.libraries.backend import LIBRARIES, LibraryBackend

        self.place = torch.device("cuda", index)
        is_library = attention in LIBRARIES
        self.backend = LibraryBackend(attention, index=index) if is_library else TritonBackend(index=index)
        self.why = f"there is a CUDA device; {_TRITON_IS_AUTO if attention == 'auto' else f'{attention} is asked for'}"
        self._streams = streams_of(self.place)
        self.unit = str(torch.cuda.get_device_properties(self.place).uuid)
        try:
            self.sharing = MemorySharing(Driver(index), self.place)
        except DriverError as error:
            self.why_not_sharing = str(error)
        self._leaving: deque[_CudaCopy] = deque()
        self._graph_memory = GraphMemory()

    @classmethod
    def missing(cls, index: int) -> Missing | None:
        """See Device."""
        # Read when CUDA starts: streams that share a queue wait for each other, and some wait for other GPUs.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", str(QUEUES))
        if not torch.cuda.is_available():
            built = "" if torch.version.cuda else "; this torch was built without CUDA"
            return Missing(f"no CUDA device was found{built}", "use --device cpu")
        if index >= (count := torch.cuda.device_count()):
            return Missing(f"the last CUDA device is cuda:{count - 1}", "use one that is there", is_idle=True)
        if find_spec("triton") is None:
            return Missing("Triton is not installed", _INSTALL, is_idle=True)
        return None

    @classmethod
    def open(cls, index: int, cpu_kernels: CpuKernels, attention: AttentionBackend) -> CudaDevice:
        """See Device."""
        return cls(index, attention)

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

    def write(self, target: Tensor, source: Tensor) -> None:
        """See Device."""
        pinned = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
        pinned.copy_(source)
        target.copy_(pinned, non_blocking=True)

    def to_host(self, *tensors: Tensor, aside: bool = False) -> PendingCopy:
        """See Device."""
        stream = here = torch.cuda.current_stream(self.place)
        if aside:
            stream = self._streams.aside
            stream.wait_stream(here)
        hosts = tuple(torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors)
        with torch.cuda.stream(stream):
            for host, tensor in zip(hosts, tensors, strict=True):
                host.copy_(tensor, non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record(stream)
        copy = _CudaCopy(hosts, tensors, arrived)
        if aside:
            self._hold(copy)
        return copy

    def _hold(self, copy: _CudaCopy) -> None:
        """Until it has arrived: whoever asked for it may forget it. Copies aside arrive in order."""
        while self._leaving and self._leaving[0].arrived.query():  # type: ignore[no-untyped-call]
            self._leaving.popleft()
        self._leaving.append(copy)

    def host(self, num_bytes: int) -> Tensor:
        """See Device. Pinned; torch keeps what is given back for the next one."""
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def synchronize(self) -> None:
        """See Device."""
        torch.cuda.current_stream(self.place).synchronize()

    def stream(self) -> AbstractContextManager[object]:
        """See Device."""
        return self._streams.own()

    def shared_stream(self, *, urgent: bool = False) -> AbstractContextManager[object]:
        """See Device."""
        return self._streams.shared(urgent=urgent)

    def keep_stream(self, stream: AbstractContextManager[object]) -> bool:
        """See Device."""
        return self._streams.keep(stream)

    def kv_budget(self, share: float) -> int:
        """See Device. What is left of the share after all that is taken, by whomever and for CUDA's context and kernels
        too, less what a step needs for a while."""
        self.synchronize()
        torch.cuda.empty_cache()
        free_bytes, total_bytes = torch.cuda.mem_get_info(self.place)
        return int(share * total_bytes) - (total_bytes - free_bytes) - STEP_BYTES

    def share(self, memory: memoryview) -> Tensor | None:
        """See Device: pinned where it lies, so that kernels reach it over the bus, those of peers' GPUs too."""
        host = torch.frombuffer(memory, dtype=torch.uint8)
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        with torch.cuda.device(self.place):  # by the current one's context, which there is none of on other GPUs
            code = int(runtime.cudaHostRegister(host.data_ptr(), host.nbytes, _PORTABLE | _MAPPED))
        if code:
            return None
        weakref.finalize(host, _unregister, self.place, host.data_ptr())
        return host

    def claim(self, *, alone: bool) -> None:
        """See Device."""
        self._claim = claim(str(self.place), self.unit, alone=alone)

    def capture(self, run: Run, group: int = 0) -> Captured:
        """See Device."""
        graph, results = self._graph_memory.captured(run, group)
        return Captured(graph.replay, results)


def _unregister(place: torch.device, address: int) -> None:
    """Whichever thread does it, no context comes to be on another GPU."""
    with torch.cuda.device(place):
        torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


def _packed(tensors: tuple[Tensor, ...]) -> Iterator[slice]:
    """Where the bytes of each lie when they follow each other, aligned."""
    end = 0
    for tensor in tensors:
        start = -(-end // _ALIGNED_BYTES) * _ALIGNED_BYTES
        end = start + tensor.nbytes
        yield slice(start, end)


def _part(packed: Tensor, place: slice, like: Tensor) -> Tensor:
    return packed[place].view(like.dtype).view(like.shape)
