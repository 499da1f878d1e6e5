"""What a worker computes with: the device, its kernels, threads and their cores."""

from __future__ import annotations

import os

import structlog

from distkv.config import EngineSettings
from distkv.engine.device.device import Device
from distkv.engine.device.registry import choose_device
from distkv.kernels.cpu.dispatch import TORCH


def set_up(settings: EngineSettings) -> Device:
    """Choose the device and its kernels, set threads and cores of this process, and log that; before any other thread
    is made.

    With cores given, all threads of the process stay on them, and each of the native threads but the caller's, which
    has other things to do as well, on one. Raises ConfigError when what the settings name is not here.
    """
    device = choose_device(settings.device, settings.cpu_kernels, settings.attention_backend)
    if settings.cores:
        os.sched_setaffinity(0, settings.cores)
    threads = settings.threads or 1
    device.backend.use_threads(threads, settings.cores[:threads])
    facts = {
        "device": str(device.place),
        "backend": device.backend.name,
        "threads": threads,
        "cores": list(settings.cores),
        "why": device.why,
    }
    if device.backend.name == TORCH and settings.cpu_kernels == "auto":
        structlog.get_logger().warning("kernels", **facts)
    else:
        structlog.get_logger().info("kernels", **facts)
    return device
