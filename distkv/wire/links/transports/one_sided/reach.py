"""Whether a library can really read a peer's memory without the peer: by CMA within a host, or by RDMA.

Where it cannot, UCX sends requests over TCP that a thread of the owner answers from memory: no faster than our own TCP
link, and when the reading process ends in the middle of an answer, UCX (1.21, 1.23) ends the owner's process.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

from distkv.wire.links.memory.pool_memory import PoolRegion, host_key

_INFINIBAND = Path("/sys/class/infiniband")
_MODULES = Path("/sys/module")


@dataclass(frozen=True, slots=True)
class Process:
    """Of a peer, as it says itself."""

    host_key: str
    pid: int
    has_rdma: bool


def why_unreachable(process: Process, address: int | None) -> str:
    """Why the memory at `address` of a process, None for that of a GPU, cannot be read without the process; "" if it
    can."""
    if process.host_key == host_key():
        return "" if address is None else _why_not_by_cma(process.pid, address)
    if process.has_rdma and has_rdma():
        return ""
    return "it is on another host, and there is no RDMA device in UCX_NET_DEVICES at both ends"


def has_rdma() -> bool:
    """Whether there is an RDMA device here that UCX was told to use."""
    if not _INFINIBAND.is_dir():
        return False
    allowed = {device.split(":")[0] for device in os.environ.get("UCX_NET_DEVICES", "").split(",")}
    return any(device.name in allowed for device in _INFINIBAND.iterdir())


def lands_on_gpu(pool: PoolRegion, peer_host_key: str) -> bool:
    """Whether reads from a peer arrive in this pool, of a GPU, without main memory in between: from another host, by an
    RDMA device that writes to GPUs (GPUDirect), for which a module of the kernel is loaded."""
    has_module = any((_MODULES / name).is_dir() for name in ("nvidia_peermem", "nv_peer_mem"))
    return pool.memory == "cuda" and peer_host_key != host_key() and has_rdma() and has_module


class _Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]


def _why_not_by_cma(pid: int, address: int) -> str:
    """Read a byte, as UCX does it."""
    byte = ctypes.create_string_buffer(1)
    local, remote = _Vector(ctypes.addressof(byte), 1), _Vector(address, 1)
    read = ctypes.CDLL(None, use_errno=True).process_vm_readv
    read.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]
    read.restype = ctypes.c_ssize_t
    if read(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) == 1:
        return ""
    return f"the memory of process {pid} cannot be read: {os.strerror(ctypes.get_errno())}"
