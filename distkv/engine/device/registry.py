"""The kinds of devices, and which one a `device` setting means here."""

from __future__ import annotations

from collections.abc import Mapping

from distkv.engine.device.cpu import CpuDevice
from distkv.engine.device.cuda import CudaDevice
from distkv.engine.device.device import Device
from distkv.errors import ConfigError
from distkv.types import AttentionBackend, CpuKernels

DEVICES: Mapping[str, type[Device]] = {"cuda": CudaDevice, "cpu": CpuDevice}
"""By their names in settings; "auto" takes the first that is here, and the last always is."""


def choose_device(
    wanted: str = "auto", cpu_kernels: CpuKernels = "auto", attention: AttentionBackend = "auto"
) -> Device:
    """For a `device` setting: auto, a name in DEVICES, or name:number. Raises ConfigError for what is not here."""
    if wanted != "auto":
        name, _, number = wanted.partition(":")
        kind, index = DEVICES[name], int(number or 0)
        if missing := kind.missing(index):
            raise ConfigError("device", f"{wanted} is not here: {missing.problem}", missing.hint)
        return kind.open(index, cpu_kernels, attention)
    idle = ""
    for name, kind in DEVICES.items():
        if (missing := kind.missing(0)) is None:
            break
        # Nobody misses a GPU that is not there; one that is idle should not go unnoticed.
        if missing.is_idle:
            idle += f"; no use of {name}: {missing.problem} ({missing.hint})"
    device = kind.open(0, cpu_kernels, attention)
    device.why += idle
    return device
