"""What a worker computes with: the backend, its threads and their cores."""

from __future__ import annotations

import ctypes
import os

import structlog
import torch

from distkv.actors.worker_spec import WorkerSpec
from distkv.kernels.cpu.dispatch import Choice, choose


def set_up(spec: WorkerSpec) -> Choice:
    """Choose the backend, set threads and cores of this process, and log that; before any other thread is made.

    With cores given, all threads of the process stay on them, and each of the native threads but the caller's, which
    has other things to do as well, on one. Raises ConfigError when the backend asked for is not here.
    """
    choice = choose(spec.cpu_kernels)
    if spec.cores:
        os.sched_setaffinity(0, spec.cores)
    torch.set_num_threads(spec.threads)
    if choice.native is not None:
        cores = spec.cores[: spec.threads]
        choice.native.set_threads(spec.threads, (ctypes.c_int * len(cores))(*cores), len(cores))
    facts = {"backend": choice.level, "threads": spec.threads, "cores": list(spec.cores), "why": choice.why}
    if choice.native is None and spec.cpu_kernels == "auto":
        structlog.get_logger().warning("kernels", **facts)
    else:
        structlog.get_logger().info("kernels", **facts)
    return choice
