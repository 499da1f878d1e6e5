"""The end that is read from. Gets need nobody here; a worker and its thread answer those who connect."""

from __future__ import annotations

import ctypes
import threading

import structlog

from distkv.wire.links.memory.pool_memory import PoolRegion
from distkv.wire.links.transports.ucx import library
from distkv.wire.links.transports.ucx.access import UcxAccess
from distkv.wire.links.transports.ucx.context import CONTEXTS, Worker


class Owner:
    """Serves gets of one memory region that come by one network device. access: what readers must know."""

    def __init__(self, region: PoolRegion, device: str) -> None:
        """The memory stays where it is until `close` returned: gets may come until then. Raises UcxError."""
        self._context = CONTEXTS.take(device)
        self._ucp = self._context.ucp
        self._memory = ctypes.c_void_p()
        self._worker: Worker | None = None
        self._closing = False
        self._log = structlog.get_logger("distkv.wire.links")
        try:
            params = library.MemMapParams(
                mask=_GIVEN,
                address=region.address,
                length=region.num_bytes,
                flags=library.MEM_MAP_NONBLOCK,
                prot=library.MEM_MAP_PROT_LOCAL_READ | library.MEM_MAP_PROT_REMOTE_READ,
                memory_type=library.MEMORY_TYPES[region.memory],
            )
            status = self._ucp.mem_map(self._context.handle, ctypes.byref(params), ctypes.byref(self._memory))
            self._ucp.check(f"ucp_mem_map of {region.num_bytes} bytes of {region.memory} memory", status)
            self._worker = Worker(self._context)
            self.access = UcxAccess(
                worker=self._worker.address,
                rkey=self._packed_key(),
                address=region.address,
                num_bytes=region.num_bytes,
                memory=region.memory,
            )
        except BaseException:
            self._release()
            raise
        self._thread = threading.Thread(target=self._run, args=(self._worker,), name="ucx owner", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Once. Gets under way fail at the other end."""
        assert self._worker is not None
        self._closing = True
        self._ucp.worker_signal(self._worker.handle)
        self._thread.join()
        self._release()

    def _run(self, worker: Worker) -> None:
        """The thread: sleeps in the kernel while nobody asks."""
        while not self._closing:
            status = self._ucp.worker_wait(worker.handle)
            if status != library.OK:
                self._log.error("UCX gets are no longer answered", why=self._ucp.reason(status))
                return
            while worker.progress() and not self._closing:
                pass

    def _packed_key(self) -> bytes:
        packed, size = ctypes.c_void_p(), ctypes.c_size_t()
        status = self._ucp.rkey_pack(self._context.handle, self._memory, ctypes.byref(packed), ctypes.byref(size))
        self._ucp.check("ucp_rkey_pack", status)
        try:
            return ctypes.string_at(packed.value or 0, size.value)
        finally:
            self._ucp.rkey_buffer_release(packed)

    def _release(self) -> None:
        if self._worker is not None:
            self._worker.close()
        if self._memory:
            self._ucp.mem_unmap(self._context.handle, self._memory)
        CONTEXTS.give_back(self._context)


_GIVEN = (
    library.MemMapParams.ADDRESS
    | library.MemMapParams.LENGTH
    | library.MemMapParams.FLAGS
    | library.MemMapParams.PROT
    | library.MemMapParams.MEMORY_TYPE
)


class Owners:
    """An owner of one region for each network device by which peers come, started with the first of them."""

    def __init__(self, region: PoolRegion) -> None:
        self._region = region
        self._lock = threading.Lock()
        self._owners: dict[str, Owner] = {}

    def access(self, device: str) -> UcxAccess:
        """For a peer that comes by `device`. Raises UcxError."""
        with self._lock:
            if device not in self._owners:
                self._owners[device] = Owner(self._region, device)
            return self._owners[device].access

    def close(self) -> None:
        """Once."""
        with self._lock:
            owners, self._owners = self._owners, {}
        for owner in owners.values():
            owner.close()
