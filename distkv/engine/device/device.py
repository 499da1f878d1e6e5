"""Where tensors lie, and how they get there and back. What only CUDA has is in `cuda`, behind the same signature."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

DEFAULT_POOL_BYTES = 4 * 2**30
DEFAULT_POOL_SHARE = 5
"""Without a size, a pool in main memory is 4 GiB or a fifth of the memory that is free, whichever is less."""


Run = Callable[[], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Captured:
    """results: the tensors that hold them after each `replay`."""

    replay: Callable[[], None]
    results: tuple[Tensor, ...]


class PendingCopy(Protocol):
    """A copy on its way to host memory."""

    def wait(self) -> tuple[Tensor, ...]:
        """The tensors on the host, once they are there."""


class Device(Protocol):
    """place: of tensors that kernels read and write. is_async: operations return before they are done, in order within
    a stream. Threads compute only inside a stream of their own."""

    place: torch.device
    is_async: bool

    def to_device(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Host tensors on the device: themselves if that is the host, else copied together; nothing waits for it, and
        they may be changed at once, unless it is one alone that `host` made."""

    def to_host(self, *tensors: Tensor, aside: bool = False) -> PendingCopy:
        """Begin to copy tensors of the device, as they are after all operations so far, to the host.

        aside: what comes next in this stream need not wait for the copy.
        """

    def host(self, num_bytes: int) -> Tensor:
        """uint8 host memory that copies from and to the device are fast with."""

    def synchronize(self) -> None:
        """Wait until everything in this stream is done."""

    def stream(self, *, urgent: bool = False) -> AbstractContextManager[object]:
        """Operations inside are in order with each other, beside those of other streams. To be entered again and again,
        by one thread. urgent: goes before others where both have work."""

    def kv_budget(self, share: float) -> int:
        """Bytes that a KV pool may have whose size nobody chose. share: of all memory of a GPU, for this process."""

    def capture(self, run: Run, group: int = 0) -> Captured:
        """What does the same as `run` without its cost on the host, with the tensors `run` uses now. `run` has run
        before in this stream. Raises RuntimeError when that cannot be made.

        What was captured in a group shares memory: the results of one hold until an earlier one is replayed.
        """


class ThreadStreams:
    """A stream of its own for each thread that asks."""

    def __init__(self, device: Device, *, urgent: bool = False) -> None:
        self._device, self._urgent = device, urgent
        self._local = threading.local()

    def current(self) -> AbstractContextManager[object]:
        """The calling thread's, made when it first asks."""
        stream: AbstractContextManager[object] | None = getattr(self._local, "stream", None)
        if stream is None:
            stream = self._local.stream = self._device.stream(urgent=self._urgent)
        return stream


@dataclass(frozen=True)
class CompletedCopy:
    """A PendingCopy of what is on the host."""

    tensors: tuple[Tensor, ...]

    def wait(self) -> tuple[Tensor, ...]:
        """See PendingCopy."""
        return self.tensors


class HostDevice:
    """The Device whose tensors are in main memory; operations are done when they return."""

    place = torch.device("cpu")
    is_async = False

    def to_device(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """See Device."""
        return tensors

    def to_host(self, *tensors: Tensor, aside: bool = False) -> PendingCopy:
        """See Device."""
        return CompletedCopy(tensors)

    def host(self, num_bytes: int) -> Tensor:
        """See Device."""
        return torch.empty(num_bytes, dtype=torch.uint8)

    def synchronize(self) -> None:
        """See Device."""

    def stream(self, *, urgent: bool = False) -> AbstractContextManager[object]:
        """See Device."""
        return nullcontext()

    def kv_budget(self, share: float) -> int:
        """See Device."""
        free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return min(DEFAULT_POOL_BYTES, free_bytes // DEFAULT_POOL_SHARE)

    def capture(self, run: Run, group: int = 0) -> Captured:
        """See Device."""
        results = run()

        def replay() -> None:
            for kept, found in zip(results, run(), strict=True):
                kept.copy_(found)

        return Captured(replay, results)
