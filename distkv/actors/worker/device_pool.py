"""A worker's pool in a GPU's memory, as bytes: transfers go through pinned staging, and peers read from that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import structlog
import torch
from torch import Tensor

from distkv.engine.device.device import Device, ThreadStreams
from distkv.engine.device.shared_memory.driver import DriverError
from distkv.engine.device.shared_memory.memory import SharedMemory
from distkv.errors import ConfigError
from distkv.kernels.checksum import checksums_of
from distkv.wire.links import Part, PoolRegion

STAGING_BYTES = 64 * 2**20


class DevicePool:
    """See distkv.wire.links.Pool; may be used by any threads. memory: uint8, all of it. rows: the same,
    [num_slots, slot_bytes]. shared: what it is the beginning of, where peers may map it."""

    token = ""
    mappable = None

    def __init__(self, slot_bytes: int, num_slots: int, device: Device, *, is_shared: bool = True) -> None:
        """Take it from the device. Raises ConfigError when the device does not have that much.

        is_shared: peers may map it, where the device has such memory.
        """
        self.slot_bytes, self.num_slots = slot_bytes, num_slots
        self.batch_slots = max(1, STAGING_BYTES // slot_bytes)
        self._device, self._streams = device, ThreadStreams(device)
        num_bytes = num_slots * slot_bytes
        self.shared = self._share(num_bytes) if is_shared else None
        try:
            self.memory = (
                torch.empty(num_bytes, dtype=torch.uint8, device=device.place)
                if self.shared is None
                else self.shared.tensor[:num_bytes]
            )
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                "kv_tokens",
                f"{device.place} has no room for a pool of {num_bytes} bytes: {error}",
                "give kv_tokens or kv_cache_memory_bytes",
            ) from None
        self.rows: Tensor = self.memory.view(num_slots, slot_bytes)

    def _share(self, num_bytes: int) -> SharedMemory | None:
        """Memory of the device that peers map; None where it has none, or no more of it."""
        why, sharing = self._device.why_not_sharing, self._device.sharing
        if sharing is not None:
            with self._streams.current():
                try:
                    shared = sharing.allocate(num_bytes)
                except DriverError as error:
                    why = str(error)
                else:
                    # Its mark is there before a peer looks for it, on whatever stream.
                    self._device.synchronize()
                    return shared
        structlog.get_logger().info("peers cannot map the pool", device=str(self._device.place), why=why)
        return None

    @property
    def region(self) -> PoolRegion:
        """See Pool."""
        memory = self.memory
        return PoolRegion(address=memory.data_ptr(), num_bytes=memory.nbytes, memory="cuda", device=memory.get_device())

    @contextmanager
    def reading(self, slots: Sequence[int], part: Part | None = None) -> Iterator[list[memoryview]]:
        """See Pool: a copy."""
        first_byte, num_bytes = part or (0, self.slot_bytes)
        rows = self.rows[:, first_byte : first_byte + num_bytes]
        with self._streams.current():
            (index,) = self._device.to_device(torch.tensor(slots, dtype=torch.int64))
            (host,) = self._device.to_host(self._device.backend.gather_blocks(rows, index)).wait()
        yield [host.view(-1).numpy().data]

    @property
    def has_checksums(self) -> bool:
        """See ChecksummingPool."""
        return self._device.backend.has_checksums(self.slot_bytes)

    def checksums(self, slots: Sequence[int]) -> list[int]:
        """See ChecksummingPool."""
        with self._streams.current():
            (index,) = self._device.to_device(torch.tensor(slots, dtype=torch.int64))
            (found,) = self._device.to_host(self._device.backend.checksum_blocks(self.rows, index)).wait()
        return checksums_of(found, self.slot_bytes)

    @contextmanager
    def writing(self, slots: Sequence[int]) -> Iterator[list[memoryview]]:
        """See Pool: they are copied when the block is left."""
        host = self._device.host(len(slots) * self.slot_bytes)
        yield [host.numpy().data]
        with self._streams.current():
            (index,) = self._device.to_device(torch.tensor(slots, dtype=torch.int64))
            (staging,) = self._device.to_device(host)
            self._device.backend.scatter_blocks(staging.view(len(slots), self.slot_bytes), self.rows, index)
            self._device.synchronize()
