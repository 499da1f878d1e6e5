"""What a worker computes with: the device, its kernels, threads and their cores."""

from __future__ import annotations

import ctypes
import os

import structlog
import torch

from distkv.actors.worker.spec import WorkerSpec
from distkv.engine.device.compute import Compute, choose_compute
from distkv.kernels.cpu.dispatch import TORCH


def set_up(spec: WorkerSpec) -> Compute:
    """Choose the device and its kernels, set threads and cores of this process, and log that; before any other thread
    is made.

    With cores given, all threads of the process stay on them, and each of the native threads but the caller's, which
    has other things to do as well, on one. Raises ConfigError when what was asked for is not here.
    """
    compute = choose_compute(spec.device, spec.cpu_kernels)
    if spec.cores:
        os.sched_setaffinity(0, spec.cores)
    torch.set_num_threads(spec.threads)
    if compute.native is not None:
        cores = spec.cores[: spec.threads]
        compute.native.set_threads(spec.threads, (ctypes.c_int * len(cores))(*cores), len(cores))
    facts = {
        "device": str(compute.device.place),
        "backend": compute.level,
        "threads": spec.threads,
        "cores": list(spec.cores),
        "why": compute.why,
    }
    if compute.level == TORCH and spec.cpu_kernels == "auto":
        structlog.get_logger().warning("kernels", **facts)
    else:
        structlog.get_logger().info("kernels", **facts)
    return compute
