"""The contract of a device: its memory, how tensors get there and back, its streams, and its kernels."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from distkv.engine.device.shared_memory.memory import MemorySharing
from distkv.kernels import Backend
from distkv.types import AttentionBackend, CpuKernels

Run = Callable[[], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Captured:
    """results: the tensors that hold them after each `replay`."""

    replay: Callable[[], None]
    results: tuple[Tensor, ...]


class PendingCopy(Protocol):
    """A copy on its way to host memory."""

    @property
    def is_done(self) -> bool:
        """Whether it is there."""
        ...

    def wait(self) -> tuple[Tensor, ...]:
        """The tensors on the host, once they are there."""


@dataclass(frozen=True)
class Missing:
    """Why a device cannot compute here, and what to do. is_idle: it is here, but something else is missing."""

    problem: str
    hint: str
    is_idle: bool = False


class Device(ABC):
    """What an instance computes with. Threads compute only inside a stream of their own.

    place: of tensors that kernels read and write. backend: its kernels. is_async: operations return before they are
    done, in order within a stream. why: it was chosen, in words, for the log. unit: the same word in all processes that
    compute with this piece of hardware in turns; empty where they do not. sharing: gives memory that GPUs of other
    processes of the host map; None where there is none, for `why_not_sharing`.
    """

    place: torch.device
    backend: Backend
    is_async: bool
    why: str
    unit: str = ""
    sharing: MemorySharing | None = None
    why_not_sharing: str = "peers map no memory of this device"

    @classmethod
    @abstractmethod
    def missing(cls, index: int) -> Missing | None:
        """What keeps device number `index` of this kind from computing here; None if nothing does."""

    @classmethod
    @abstractmethod
    def open(cls, index: int, cpu_kernels: CpuKernels, attention: AttentionBackend) -> Device:
        """That device, which is here. cpu_kernels: for devices that are CPUs. attention: for GPUs. Raises
        ConfigError."""

    @abstractmethod
    def to_device(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Host tensors on the device: themselves if that is the host, else copied together; nothing waits for it, and
        they may be changed at once, unless it is one alone that `host` made."""

    @abstractmethod
    def write(self, target: Tensor, source: Tensor) -> None:
        """Copy a host tensor over one of the device, of the same shape and dtype; nothing waits for it, and the source
        may be changed at once."""

    @abstractmethod
    def to_host(self, *tensors: Tensor, aside: bool = False) -> PendingCopy:
        """Begin to copy tensors of the device, as they are after all operations so far, to the host.

        aside: what comes next in this stream need not wait for the copy.
        """

    @abstractmethod
    def host(self, num_bytes: int) -> Tensor:
        """uint8 host memory that copies from and to the device are fast with."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until everything in this stream is done."""

    @abstractmethod
    def stream(self) -> AbstractContextManager[object]:
        """Operations inside are in order with each other, beside those of other streams, and may be captured. They come
        after all that the current stream was given before this call. To be entered again and again, by one thread."""

    @abstractmethod
    def shared_stream(self, *, urgent: bool = False) -> AbstractContextManager[object]:
        """The same, in one of a few streams that threads share, never in one that is captured: there are no more of
        them, however many threads ask. urgent: goes before others where both have work."""

    def keep_stream(self, stream: AbstractContextManager[object]) -> bool:
        """Nobody else gets an urgent stream of `shared_stream` as long as it is kept: who waits there for another
        device holds up all who have the same. False where somebody has it, or must have it next."""
        return True

    @abstractmethod
    def kv_budget(self, share: float) -> int:
        """Bytes that a KV pool may have whose size nobody chose. share: of all memory of a GPU, for this process."""

    def share(self, memory: memoryview) -> Tensor | None:
        """Memory of this process that another one maps, too, as uint8 that kernels here read and write until the tensor
        is gone; None where kernels of this device cannot, or its host would do it sooner."""
        return None

    def claim(self, *, alone: bool) -> None:  # noqa: B027
        """Take part of this device's memory until the process ends. alone: as if nobody else did, for a pool whose size
        nobody chose. Raises ConfigError where such a one and another would share a device."""

    @abstractmethod
    def capture(self, run: Run, group: int = 0) -> Captured:
        """What does the same as `run` without its cost on the host, with the tensors `run` uses now. `run` has run
        before in this stream. Raises RuntimeError when that cannot be made.

        What was captured in a group shares memory: the results of one hold until an earlier one is replayed.
        """


class ThreadStreams:
    """One of the shared streams for each thread that asks, always the same."""

    def __init__(self, device: Device, *, urgent: bool = False) -> None:
        self._device, self._urgent = device, urgent
        self._local = threading.local()

    def current(self) -> AbstractContextManager[object]:
        """The calling thread's, made when it first asks."""
        stream: AbstractContextManager[object] | None = getattr(self._local, "stream", None)
        if stream is None:
            stream = self._local.stream = self._device.shared_stream(urgent=self._urgent)
        return stream

    def keep(self) -> bool:
        """See Device.keep_stream, of the calling thread's."""
        return self._device.keep_stream(self.current())


@dataclass(frozen=True)
class CompletedCopy:
    """A PendingCopy of what is on the host."""

    tensors: tuple[Tensor, ...]
    is_done = True

    def wait(self) -> tuple[Tensor, ...]:
        """See PendingCopy."""
        return self.tensors
