"""A GPU's memory that peers of the host map, and theirs that is mapped here."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

from distkv.engine.device.shared_memory.driver import HAS_DESCRIPTORS, HAS_VMM, Driver, DriverError
from distkv.engine.device.shared_memory.tensors import tensor_over

MARK_BYTES = 64


class SharedMemory:
    """tensor: all of it, uint8, a whole number of the driver's units. descriptor: names it for other processes. mark:
    random, its last bytes, by which who maps it sees that it reads what was written here.

    When this process ends, however it does, peers that have it mapped may still read it; it is given back when the last
    of them has unmapped it.
    """

    def __init__(self, tensor: Tensor, descriptor: int, unmapping: ExitStack) -> None:
        """See MemorySharing.allocate."""
        self.tensor, self.descriptor = tensor, descriptor
        self.mark = secrets.token_bytes(MARK_BYTES)
        tensor[-MARK_BYTES:] = torch.frombuffer(bytearray(self.mark), dtype=torch.uint8)
        self._unmapping = unmapping

    def close(self) -> None:
        """Once, when nothing uses the tensor any more."""
        os.close(self.descriptor)
        self._unmapping.close()


class MappedMemory:
    """Memory of another process. Any thread may use it."""

    def __init__(self, tensor: Tensor, unmapping: ExitStack) -> None:
        """See MemorySharing.map."""
        self._tensor, self._unmapping = tensor, unmapping
        self._lock = threading.Lock()
        self._users, self._closed = 0, False

    @contextmanager
    def in_use(self) -> Iterator[Tensor]:
        """All of it, uint8, to be read by kernels that are done when the block is left. Raises ValueError once it is
        closed."""
        with self._lock:
            if self._closed:
                raise ValueError("the memory is not mapped any more")
            self._users += 1
        try:
            yield self._tensor
        finally:
            with self._lock:
                self._users -= 1
                is_last = self._closed and not self._users
            if is_last:
                self._unmapping.close()

    def close(self) -> None:
        """Unmap it as soon as nobody uses it; more than once is fine."""
        with self._lock:
            is_last = not self._closed and not self._users
            self._closed = True
        if is_last:
            self._unmapping.close()


class MemorySharing:
    """What one GPU shares with other processes of the host. Every call may raise DriverError.

    read_only: whether the driver has memory of peers mapped for reading only; known once some was mapped.
    """

    def __init__(self, driver: Driver, place: torch.device) -> None:
        """Raises DriverError where the GPU cannot share."""
        for attribute, what in ((HAS_VMM, "virtual memory management"), (HAS_DESCRIPTORS, "shareable handles")):
            if not driver.has(attribute):
                raise DriverError("cuDeviceGetAttribute", f"{place} has no {what}")
        self._driver, self._place = driver, place
        self.read_only: bool | None = None

    def allocate(self, num_bytes: int) -> SharedMemory:
        """Memory of at least so many bytes, the mark not counted, in the current stream."""
        driver, unit = self._driver, self._driver.granularity()
        size = -(-(num_bytes + MARK_BYTES) // unit) * unit
        with ExitStack() as undo:
            handle = driver.create(size)
            try:
                descriptor = driver.export(handle)
                undo.callback(os.close, descriptor)
                with ExitStack() as mapping:
                    address = self._map(handle, size, unit, mapping)
                    driver.give_access(address, size, writable=True)
                    unmapping = mapping.pop_all()
            finally:
                # What is mapped keeps it.
                driver.release(handle)
            undo.pop_all()
        return SharedMemory(tensor_over(address, size, self._place), descriptor, unmapping)

    def why_unreachable(self, unit: str) -> str:
        """Why kernels here cannot read the memory of the GPU with this UUID; "" if they can."""
        device = self._driver.device_of(unit)
        if device is None:
            return f"this process does not see the peer's GPU {unit}: CUDA_VISIBLE_DEVICES hides it"
        if not self._driver.can_access(device):
            return f"{self._place} has no peer access to the peer's GPU {unit}"
        return ""

    def map(self, descriptor: int, num_bytes: int) -> MappedMemory:
        """The memory, `num_bytes` in all, that a peer has named by a descriptor, which stays the caller's."""
        driver = self._driver
        handle = driver.import_(descriptor)
        with ExitStack() as mapping:
            try:
                address = self._map(handle, num_bytes, driver.granularity(), mapping)
            finally:
                driver.release(handle)
            self._give_read_access(address, num_bytes)
            unmapping = mapping.pop_all()
        return MappedMemory(tensor_over(address, num_bytes, self._place), unmapping)

    def _map(self, handle: int, size: int, alignment: int, undo: ExitStack) -> int:
        address = self._driver.reserve(size, alignment)
        undo.callback(self._driver.free, address, size)
        self._driver.map(address, size, handle)
        undo.callback(self._driver.unmap, address, size)
        return address

    def _give_read_access(self, address: int, size: int) -> None:
        """For reading only where the driver knows that of memory on devices; nothing here writes there in any case."""
        if self.read_only is not False:
            try:
                self._driver.give_access(address, size, writable=False)
            except DriverError:
                self.read_only = False
            else:
                self.read_only = True
                return
        self._driver.give_access(address, size, writable=True)
