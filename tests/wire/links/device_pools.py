"""Pools that peers map as those of GPUs: on the host, by the driver of GPUs that are not there."""

from __future__ import annotations

from distkv.actors.worker.device_pool import DevicePool
from distkv.actors.worker.links.mapped_pools import MappedPools, mapped_pools_of
from distkv.engine.device.device import Device
from tests.engine.async_device import AsyncHost
from tests.engine.device import fake_cuda


def on_host(device: Device | None = None, gpu: int = 0) -> Device:
    """A device that shares as a GPU does. gpu: one of two."""
    device = device or AsyncHost()
    device.sharing, device.unit = fake_cuda.sharing(gpu), fake_cuda.UNITS[gpu]
    return device


class SharedPool(DevicePool):
    """device: that it lies on."""

    def __init__(self, slot_bytes: int, num_slots: int, device: Device) -> None:
        self.device = device
        super().__init__(slot_bytes, num_slots, device)

    def registered(self) -> MappedPools:
        """Known to peers; the caller closes it."""
        found = mapped_pools_of(self, self.device, "cuda_ipc")
        assert found is not None
        return found

    def close(self) -> None:
        assert self.shared is not None
        self.shared.close()


class DevicePoolOnHost(SharedPool):
    """view: all of its bytes."""

    def __init__(self, slot_bytes: int, num_slots: int) -> None:
        super().__init__(slot_bytes, num_slots, on_host())
        self.view = self.memory.numpy().data

    def close(self) -> None:
        self.view.release()
        super().close()
