"""The Device of the host's CPUs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from distkv.engine.device.device import Captured, CompletedCopy, Device, Missing, PendingCopy, Run
from distkv.engine.device.host_memory import host_memory
from distkv.errors import ConfigError
from distkv.kernels import Backend
from distkv.kernels.cpu.dispatch import backend_of, choose
from distkv.types import AttentionBackend, CpuKernels

DEFAULT_POOL_BYTES = 4 * 2**30
DEFAULT_POOL_SHARE = 5
"""Without a size, a pool in main memory is 4 GiB or a fifth of the memory that is free, whichever is less."""


class CpuDevice(Device):
    """The Device whose tensors are in main memory; operations are done when they return."""

    place = torch.device("cpu")
    is_async = False

    def __init__(self, backend: Backend | None = None, why: str = "given") -> None:
        """backend: the best there is by default."""
        self.backend, self.why = backend or backend_of(), why

    @classmethod
    def missing(cls, index: int) -> Missing | None:
        """See Device."""
        return None

    @classmethod
    def open(cls, index: int, cpu_kernels: CpuKernels, attention: AttentionBackend) -> CpuDevice:
        """See Device."""
        if attention != "auto":
            raise ConfigError("attention_backend", f"{attention} is for GPUs, and a CPU computes", "leave it out")
        choice = choose(cpu_kernels)
        return cls(backend_of(choice), choice.why)

    def to_device(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """See Device."""
        return tensors

    def write(self, target: Tensor, source: Tensor) -> None:
        """See Device."""
        target.copy_(source)

    def to_host(self, *tensors: Tensor, aside: bool = False) -> PendingCopy:
        """See Device."""
        return CompletedCopy(tensors)

    def host(self, num_bytes: int) -> Tensor:
        """See Device."""
        return torch.empty(num_bytes, dtype=torch.uint8)

    def synchronize(self) -> None:
        """See Device."""

    def stream(self) -> AbstractContextManager[object]:
        """See Device."""
        return nullcontext()

    def shared_stream(self, *, urgent: bool = False) -> AbstractContextManager[object]:
        """See Device."""
        return nullcontext()

    def kv_budget(self, share: float) -> int:
        """See Device."""
        return min(DEFAULT_POOL_BYTES, host_memory().free_bytes // DEFAULT_POOL_SHARE)

    def capture(self, run: Run, group: int = 0) -> Captured:
        """See Device."""
        results = run()

        def replay() -> None:
            for kept, found in zip(results, run(), strict=True):
                kept.copy_(found)

        return Captured(replay, results)
