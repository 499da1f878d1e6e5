"""How many rBlocks a worker's pool has, and the memory for them."""

from __future__ import annotations

import torch
from torch import Tensor

from distkv.actors.worker.device_pool import DevicePool
from distkv.config import EngineSettings
from distkv.engine.device.device import Device
from distkv.engine.device.host_memory import host_memory
from distkv.errors import ConfigError
from distkv.types import Transport
from distkv.wire.links import Pool, PoolMemory


def kv_dtype(settings: EngineSettings, dtype: torch.dtype, device: Device) -> torch.dtype:
    """Of keys and values, where `dtype` is the model's. Raises ConfigError for what the device cannot compute with."""
    if settings.kv_cache_dtype == "auto":
        return dtype
    if not device.backend.has_fp8:
        raise ConfigError(
            "kv_cache_dtype",
            f"the kernels of {device.place} have no fp8",
            "use auto, or a GPU of compute capability 8.9 or later",
        )
    return torch.float8_e4m3fn


def make_pool(
    settings: EngineSettings, one_slot: int, device: Device, transport: Transport = "auto"
) -> tuple[Pool, memoryview | Tensor]:
    """A pool of as many rBlocks of `one_slot` bytes as the settings say, or as there is room for, and its memory; to be
    called when the weights are loaded. transport: where another than "cuda_ipc" is insisted on, peers map no pool of a
    GPU. Raises ConfigError when that is none, or more than there is."""
    device.claim(alone=settings.kv_tokens is None and settings.kv_cache_memory_bytes is None)
    num_slots = _num_slots(settings, one_slot, device)
    if device.place.type == "cpu":
        _check_fits(settings, num_slots * one_slot)
        memory = PoolMemory(one_slot, num_slots)
        return memory, memory.view
    pool = DevicePool(one_slot, num_slots, device, is_shared=transport in ("auto", "cuda_ipc"))
    return pool, pool.memory


def _check_fits(settings: EngineSettings, size_bytes: int) -> None:
    """The system promises more than it has, and ends who takes it."""
    memory = host_memory()
    field = "kv_cache_memory_bytes" if settings.kv_tokens is None else "kv_tokens"
    pool, there_are = (f"{size / 2**30:,.1f} GiB" for size in (size_bytes, memory.all_bytes))
    if size_bytes > memory.all_bytes:
        raise ConfigError(field, f"a pool of {pool} is more than the {there_are} of this machine or container")
    if memory.left_bytes is not None and size_bytes > memory.left_bytes:
        left = f"{memory.left_bytes / 2**30:,.1f} GiB"
        raise ConfigError(
            field,
            f"a pool of {pool} is more than the {left} that are left of the {there_are} of this container, now that "
            "the model is loaded",
        )


def _num_slots(settings: EngineSettings, one_slot: int, device: Device) -> int:
    if settings.kv_tokens is not None:
        return settings.kv_tokens // settings.block_size
    size_bytes = settings.kv_cache_memory_bytes
    if size_bytes is None:
        size_bytes = device.kv_budget(settings.gpu_memory_utilization)
    if size_bytes < one_slot:
        chosen = settings.kv_cache_memory_bytes is not None or device.place.type == "cpu"
        raise ConfigError(
            "kv_cache_memory_bytes" if chosen else "gpu_memory_utilization",
            f"{max(size_bytes, 0)} bytes for the pool are less than one rBlock of {one_slot} bytes",
            "give more, or free memory",
        )
    return size_bytes // one_slot
