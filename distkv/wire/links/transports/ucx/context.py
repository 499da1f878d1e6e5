"""A UCP context bound to one network device, and its workers. Everything here is given back by `close`."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading

from distkv.wire.links.transports.ucx import library
from distkv.wire.links.transports.ucx.library import Ucp

SETTINGS = {
    # With peer error handling CMA serves one-sided reads only if nothing larger goes by rendezvous.
    "RNDV_THRESH": "inf",
    # Gets that the owner's CPU would have to answer are refused: when who asked is gone by then, UCX ends the owner.
    "PROTO_EMULATION_ENABLE": "n",
    # Else a connection attempt to a host that drops it holds the thread past every deadline.
    "TCP_CONN_NB": "y",
    # How many copies one call for progress makes.
    "CMA_TX_QUOTA": "32",
    # Peer error handling rules these out; without them a worker takes 4 MB less.
    "TLS": "^posix,sysv,xpmem,knem,self",
}
"""Of every context, each unless the environment sets it (as UCX_...)."""

_API = 1, 17


class Context:
    """A UCP context; from any thread. device: the network device that UCX may use, "" for all."""

    def __init__(self, device: str) -> None:
        """Raises UcxError."""
        self.ucp = library.load()
        self.device = device
        params = library.ContextParams(
            mask=library.ContextParams.FEATURES | library.ContextParams.MT_WORKERS_SHARED,
            features=library.FEATURE_RMA | library.FEATURE_WAKEUP,
            mt_workers_shared=1,
        )
        self.handle = ctypes.c_void_p()
        with contextlib.ExitStack() as stack:
            config = ctypes.c_void_p()
            self.ucp.check("ucp_config_read", self.ucp.config_read(None, None, ctypes.byref(config)))
            stack.callback(self.ucp.config_release, config)
            for name, value in (SETTINGS | ({"NET_DEVICES": device} if device else {})).items():
                if f"UCX_{name}" not in os.environ:
                    status = self.ucp.config_modify(config, name.encode(), value.encode())
                    self.ucp.check(f"{name}={value}", status)
            status = self.ucp.init_version(*_API, ctypes.byref(params), config, ctypes.byref(self.handle))
            self.ucp.check(f"ucp_init on {device or 'all devices'}", status)

    def close(self) -> None:
        """Once, when its workers and mappings are gone."""
        self.ucp.cleanup(self.handle)


class Contexts:
    """One context for each device, shared by all that use it; the last one closes it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used: dict[str, tuple[Context, int]] = {}

    def take(self, device: str) -> Context:
        """The context of a device; `give_back` follows. Raises UcxError."""
        with self._lock:
            context, users = self._used.get(device) or (Context(device), 0)
            self._used[device] = context, users + 1
            return context

    def give_back(self, context: Context) -> None:
        with self._lock:
            users = self._used[context.device][1] - 1
            if users:
                self._used[context.device] = context, users
            else:
                del self._used[context.device]
                context.close()


CONTEXTS = Contexts()


class Worker:
    """A UCP worker: what is under way, and the sockets that it goes by. Used by one thread at a time."""

    def __init__(self, context: Context) -> None:
        """Raises UcxError."""
        self.ucp: Ucp = context.ucp
        params = library.WorkerParams(mask=library.WorkerParams.THREAD_MODE, thread_mode=library.THREAD_MODE_SERIALIZED)
        self.handle = ctypes.c_void_p()
        status = self.ucp.worker_create(context.handle, ctypes.byref(params), ctypes.byref(self.handle))
        self.ucp.check("ucp_worker_create", status)

    @property
    def address(self) -> bytes:
        """By which others connect to it. Raises UcxError."""
        attributes = library.WorkerAttr(mask=library.WorkerAttr.ADDRESS)
        self.ucp.check("ucp_worker_query", self.ucp.worker_query(self.handle, ctypes.byref(attributes)))
        try:
            return ctypes.string_at(attributes.address, attributes.address_length)
        finally:
            self.ucp.worker_release_address(self.handle, attributes.address)

    @property
    def event_fd(self) -> int:
        """Readable when there is something to progress, once `arm` returned True; the worker closes it."""
        fd = ctypes.c_int()
        self.ucp.check("ucp_worker_get_efd", self.ucp.worker_get_efd(self.handle, ctypes.byref(fd)))
        return fd.value

    def arm(self) -> bool:
        """Whether one may wait for `event_fd`; else there is something to progress."""
        return bool(self.ucp.worker_arm(self.handle) == library.OK)

    def progress(self) -> bool:
        """Move on what is under way; False if there was nothing to do."""
        return bool(self.ucp.worker_progress(self.handle))

    def close(self) -> None:
        """Once. Nothing is under way afterwards."""
        self.ucp.worker_destroy(self.handle)
