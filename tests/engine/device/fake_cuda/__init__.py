"""A libcuda for tests, which shares memory of the host as CUDA does that of GPUs."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from uuid import UUID

import pytest
import torch

from distkv.engine.device.shared_memory.driver import Driver
from distkv.engine.device.shared_memory.memory import MemorySharing

SOURCE = Path(__file__).with_name("libcuda.cpp")
UNITS = tuple(str(UUID(digits * 16)) for digits in ("10", "11"))
"""UUIDs of the two GPUs."""


@functools.cache
def why_not() -> str:
    """Why there can be none here; "" if there can."""
    if shutil.which("g++") is None:
        return "the driver of GPUs that are not there is compiled: no g++"
    return "" if _headers() else "the driver of GPUs that are not there is compiled: no cuda.h, which Triton brings"


def library() -> str:
    """Its path; compiled once for all processes of this machine. Skips the test where it cannot be."""
    if why := why_not():
        pytest.skip(why)
    headers = _headers()
    assert headers is not None
    digest = hashlib.blake2b(SOURCE.read_bytes() + (headers / "cuda.h").read_bytes(), digest_size=8).hexdigest()
    path = Path(tempfile.gettempdir()) / f"distkv-fake-cuda-{os.getuid()}-{digest}.so"
    if not path.exists():
        fresh = path.with_suffix(f".{os.getpid()}")
        command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", f"-I{headers}", str(SOURCE)]
        subprocess.run([*command, "-o", str(fresh)], check=True)
        fresh.rename(path)
    return str(path)


def driver(index: int = 0) -> Driver:
    """Of one of its two GPUs."""
    return Driver(index, library())


def sharing(index: int = 0) -> MemorySharing:
    """Of one of its two GPUs, whose memory is said to be the host's."""
    return MemorySharing(driver(index), torch.device("cpu"))


def living() -> int:
    """Handles, reservations and mappings of this process that were not given back."""
    return int(ctypes.CDLL(library()).fake_cuda_living())


def _headers() -> Path | None:
    found = importlib.util.find_spec("triton")
    if found is None or found.origin is None:
        return None
    headers = Path(found.origin).parent / "backends" / "nvidia" / "include"
    return headers if (headers / "cuda.h").exists() else None
