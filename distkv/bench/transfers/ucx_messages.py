"""A message per block by UCX: tagged sends of the owner, one for each block, into receives of the reader. An end either
waits for each before it begins the next, as in 004 Fig. 4, or begins them all at once."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self

import msgspec

from distkv.wire.links.transports.one_sided.devices import device_of
from distkv.wire.links.transports.ucx import library

FEATURE_TAG = 1 << 0
CONNECTED = 2**63
"""The tag of the first message, which opens the connection."""
LOOKS_S, PAUSE_S = 0.05, 0.002
"""So long an end looks without pause whether what it has sent is there, and how long it pauses between looks then."""


Settings = dict[str, str]
"""Variables of UCX, without their prefix. Peer error handling is off in any case: with it UCX uses no shared memory,
and is slower."""


class Exchange(msgspec.Struct, frozen=True):
    """How blocks are sent. in_flight: how many messages an end begins before it waits for them."""

    in_flight: int
    settings: Settings = msgspec.field(default_factory=dict)

    def __str__(self) -> str:
        when = "one at a time" if self.in_flight == 1 else "all at once"
        set_to = ", ".join(f"UCX_{name}={value}" for name, value in self.settings.items())
        return f"tagged messages, {when}, no peer error handling, {set_to or 'defaults'}"


ALL_AT_ONCE = 1 << 20
ONE_AT_A_TIME, IN_FLIGHT = Exchange(1), Exchange(ALL_AT_ONCE)
BEST = Exchange(ALL_AT_ONCE, {"RNDV_THRESH": "inf", "TCP_TX_SEG_SIZE": "256K", "TCP_RX_SEG_SIZE": "256K"})
"""Of what was tried: no rendezvous for blocks up to 128 KB, and long segments over TCP. Longer queues in shared memory
are faster for small blocks (POSIX_FIFO_SIZE and SYSV_FIFO_SIZE of 1024), but messages of 128 KB never end with them."""


class Connect(msgspec.Struct, frozen=True):
    """What a reader tells the owner: how blocks are sent, and where it is."""

    exchange: Exchange
    worker: bytes


class _End:
    """A context and a worker, and what both ends do with requests."""

    def __init__(self, exchange: Exchange, host: str) -> None:
        """host: the own address by which the other end is reached."""
        self._exchange = exchange
        self.ucp = library.load()
        tag = ctypes.c_uint64
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self._send = self.ucp.held("ucp_tag_send_nbx", pointer, pointer, pointer, size, tag, pointer)
        self._receive = self.ucp.held("ucp_tag_recv_nbx", pointer, pointer, pointer, size, tag, tag, pointer)
        self._flush = self.ucp.held("ucp_ep_flush_nbx", pointer, pointer, pointer)
        self._param = ctypes.byref(library.RequestParam())
        self._context, self.worker = ctypes.c_void_p(), ctypes.c_void_p()
        self._open(exchange.settings | {"NET_DEVICES": device_of(host)})

    def _open(self, variables: Mapping[str, str]) -> None:
        ucp, config = self.ucp, ctypes.c_void_p()
        ucp.check("ucp_config_read", ucp.config_read(None, None, ctypes.byref(config)))
        try:
            for name, value in variables.items():
                ucp.check(name, ucp.config_modify(config, name.encode(), value.encode()))
            params = library.ContextParams(mask=library.ContextParams.FEATURES, features=FEATURE_TAG)
            status = ucp.init_version(1, 17, ctypes.byref(params), config, ctypes.byref(self._context))
            ucp.check("ucp_init", status)
        finally:
            ucp.config_release(config)
        of_worker = library.WorkerParams(mask=0)
        status = ucp.worker_create(self._context, ctypes.byref(of_worker), ctypes.byref(self.worker))
        ucp.check("ucp_worker_create", status)

    @property
    def address(self) -> bytes:
        attributes = library.WorkerAttr(mask=library.WorkerAttr.ADDRESS)
        self.ucp.check("ucp_worker_query", self.ucp.worker_query(self.worker, ctypes.byref(attributes)))
        try:
            return ctypes.string_at(attributes.address, attributes.address_length)
        finally:
            self.ucp.worker_release_address(self.worker, attributes.address)

    def send(self, endpoint: ctypes.c_void_p, address: int, size: int, tag: int) -> int | None:
        """The request under way, None if it is complete."""
        return self.ucp.request("ucp_tag_send_nbx", self._send(endpoint, address, size, tag, self._param))

    def receive(self, address: int, size: int, tag: int) -> int | None:
        """As `send`."""
        found = self._receive(self.worker, address, size, tag, 2**64 - 1, self._param)
        return self.ucp.request("ucp_tag_recv_nbx", found)

    def by_turns(self, begin: Iterator[int | None]) -> None:
        """Begin as many requests as may be in flight, and finish them, until there are no more."""
        while requests := list(itertools.islice(begin, self._exchange.in_flight)):
            self.finish(requests)

    def finish(self, requests: Sequence[int | None]) -> None:
        """Until all are complete."""
        status_of, progress = self.ucp.request_check_status, self.ucp.worker_progress
        for request in requests:
            if request is not None:
                while (status := status_of(request)) == library.INPROGRESS:
                    progress(self.worker)
                self.ucp.request_free(request)
                self.ucp.check("a message", status)

    def close(self) -> None:
        """Once."""
        self.ucp.worker_destroy(self.worker)
        self.ucp.cleanup(self._context)


class Sender(_End):
    """The owner's end of one connection."""

    def __init__(self, to: Connect, host: str) -> None:
        super().__init__(to.exchange, host)
        address = ctypes.create_string_buffer(to.worker, len(to.worker))
        params = library.EpParams(mask=library.EpParams.REMOTE_ADDRESS, address=ctypes.addressof(address))
        self._endpoint = ctypes.c_void_p()
        status = self.ucp.ep_create(self.worker, ctypes.byref(params), ctypes.byref(self._endpoint))
        self.ucp.check("ucp_ep_create", status)
        self.finish([self.send(self._endpoint, ctypes.addressof(address), 1, CONNECTED)])

    def send_blocks(self, addresses: Sequence[int], size: int) -> None:
        """A message for each, in order."""
        self.by_turns(self.send(self._endpoint, address, size, tag) for tag, address in enumerate(addresses))
        # A send may be complete before the reader has all that it needs: nothing moves on once this end is left alone.
        flush = self.ucp.request("ucp_ep_flush_nbx", self._flush(self._endpoint, self._param))
        # A reader that has all it needs may not answer before it reads again: the core is others' meanwhile.
        pauses_at = time.monotonic() + LOOKS_S
        while flush is not None and self.ucp.request_check_status(flush) == library.INPROGRESS:
            self.ucp.worker_progress(self.worker)
            if time.monotonic() > pauses_at:
                time.sleep(PAUSE_S)
        self.finish([flush])

    def close(self) -> None:
        """Once; the reader is still there."""
        param = library.RequestParam(mask=library.RequestParam.FLAGS, flags=library.EP_CLOSE_FLAG_FORCE)
        with contextlib.suppress(library.UcxError):
            self.finish([self.ucp.request("ucp_ep_close_nbx", self.ucp.ep_close(self._endpoint, ctypes.byref(param)))])
        super().close()


class Receiver(_End):
    """The reader's end of one connection."""

    def wait_connected(self) -> None:
        """Until the owner has sent its first message."""
        byte = ctypes.create_string_buffer(1)
        self.finish([self.receive(ctypes.addressof(byte), 1, CONNECTED)])

    def receive_blocks(self, addresses: Sequence[int], size: int, ask: Callable[[], None]) -> None:
        """A message for each. ask: has the owner send them; called when the first receives are posted."""
        begin = (self.receive(address, size, tag) for tag, address in enumerate(addresses))
        first = list(itertools.islice(begin, self._exchange.in_flight))
        ask()
        self.finish(first)
        self.by_turns(begin)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
