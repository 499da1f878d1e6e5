"""Ways for blocks to come here: tensor links, messages, and copying within the own memory as the limit of all."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Self

import msgspec
import numpy as np
import xxhash
import zmq

from distkv.bench.transfers import ucx_messages
from distkv.bench.transfers.layouts import Layout
from distkv.bench.transfers.owner import IDENTITY, IOVECS, Reached, registered_with_all
from distkv.checksums import pack
from distkv.errors import DistKVError, LinkClosed
from distkv.types import Transport
from distkv.wire.links import LinkIdentity, PoolMemory, TensorLink, connect, hello_to
from distkv.wire.links.base import CheckingLink
from distkv.wire.links.memory.mapped_copy import copy_blocks
from distkv.wire.links.memory.runs import places_of
from distkv.wire.links.transports.registry import OPTIONAL
from distkv.wire.messages.data import Attend

READER = LinkIdentity(instance_id="reader", incarnation=1, compat="bench")
DEADLINE_S = 60.0
MEMCPY = "memcpy"
VECTORED = "vectored sockets"
MESSAGES = "TCP, a message per block"
GATHERED = "TCP, gathered, sent, scattered"
ZMQ_MESSAGES = "ZeroMQ, a message per block"
UCX_MESSAGES = "UCX, a message per block"
UCX_EXCHANGES = {
    UCX_MESSAGES: ucx_messages.ONE_AT_A_TIME,
    "UCX, a message per block, all at once": ucx_messages.IN_FLIGHT,
    "UCX, a message per block, best settings": ucx_messages.BEST,
}
PER_BLOCK = ", a read per block"
VERIFIED = ", verified"

Way = Callable[[Layout], None]


class Ways:
    """All that can be had to one owner. own: the pool where blocks arrive. checksums: of the owner's. links: open ones,
    by transport."""

    def __init__(self, reached: Reached, own: PoolMemory, away: PoolMemory) -> None:
        """away: a pool of this process, for copies within it, which holds what the owner's holds."""
        self.own = own
        self._away = away
        size = own.slot_bytes
        starts = range(0, away.view.nbytes, size)
        self.checksums = [xxhash.xxh3_64_intdigest(away.view[start : start + size]) for start in starts]
        self._stack = contextlib.ExitStack()
        self.links: dict[str, TensorLink] = {}
        self.not_linked: dict[str, str] = {}
        registered = registered_with_all(own)
        for registration in registered.values():
            self._stack.callback(registration.close)
        hello = hello_to(READER, IDENTITY.instance_id, IDENTITY.incarnation)
        for name in ("shm", "tcp", *OPTIONAL):
            transport: Transport = name  # type: ignore[assignment]
            try:
                self.links[name] = connect(reached.endpoint, hello, DEADLINE_S, transport, registered)
            except LinkClosed as closed:
                self.not_linked[name] = closed.why
            else:
                self._stack.callback(self.links[name].abort)
        host = reached.endpoint.address.rpartition(":")[0]
        self._sock = self._connection(host, reached.port)
        self._by_ucx: dict[str, tuple[socket.socket, ucx_messages.Receiver]] = {}
        # Namespaces stand for hosts, which share no memory.
        by_network = {} if ipaddress.ip_address(host).is_loopback else {"TLS": "tcp"}
        for name, exchange in UCX_EXCHANGES.items():
            there = msgspec.structs.replace(exchange, settings=exchange.settings | by_network)
            try:
                self._by_ucx[name] = self._connected_by_ucx(self._connection(host, reached.port), there)
            except (DistKVError, ImportError) as error:
                self.not_linked[name] = str(error)
        context = self._stack.enter_context(zmq.Context())
        self._dealer = self._stack.enter_context(context.socket(zmq.DEALER))
        self._dealer.setsockopt(zmq.RCVHWM, 0)
        self._dealer.setsockopt(zmq.LINGER, 0)
        self._dealer.connect(reached.zmq_address)

    def _connection(self, host: str, port: int) -> socket.socket:
        sock = self._stack.enter_context(socket.create_connection((host, port)))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def _connected_by_ucx(
        self, sock: socket.socket, exchange: ucx_messages.Exchange
    ) -> tuple[socket.socket, ucx_messages.Receiver]:
        receiver = self._stack.enter_context(ucx_messages.Receiver(exchange, sock.getsockname()[0]))
        told = msgspec.msgpack.encode(ucx_messages.Connect(exchange, receiver.address))
        sock.sendall(b"U" + len(told).to_bytes(4, "little") + told)
        receiver.wait_connected()
        return sock, receiver

    def all(self) -> dict[str, Way]:
        """By name; each brings the blocks of a layout to where it says."""
        ways: dict[str, Way] = {MEMCPY: self._copy}
        for name, link in self.links.items():
            ways[name] = partial(self._list, link)
            ways[name + PER_BLOCK] = partial(self._each, link)
            if isinstance(link, CheckingLink):
                ways[name + VERIFIED] = partial(self._verified, link)
        for name, (sock, receiver) in self._by_ucx.items():
            ways[name] = partial(self._messages_by_ucx, sock, receiver)
        return ways | {
            VECTORED: self._vectored,
            GATHERED: self._gathered,
            MESSAGES: self._messages,
            ZMQ_MESSAGES: self._zmq_messages,
        }

    def round_trip_s(self, transport: str, num_bytes: int, times: int) -> float:
        """Seconds for as many bytes there and back, by the link's frames; the median of so many times."""
        link, body = self.links[transport], bytes(num_bytes)
        took_s = []
        for number in range(times):
            started = time.perf_counter()
            link.send(Attend(step_id=number, layer=0), body)
            link.recv(DEADLINE_S)
            took_s.append(time.perf_counter() - started)
        return statistics.median(took_s)

    def _copy(self, layout: Layout) -> None:
        size = self.own.slot_bytes
        copy_blocks(self._away.memory, layout.source, places_of(layout.views(self.own), size).addresses, size)

    def _list(self, link: TensorLink, layout: Layout) -> None:
        link.read(layout.source, layout.views(self.own), DEADLINE_S)

    def _each(self, link: TensorLink, layout: Layout) -> None:
        blocks = layout.blocks(self.own)
        reads = [link.read_blocks([slot], [block]) for slot, block in zip(layout.source, blocks, strict=True)]
        for read in reads:
            read.wait(DEADLINE_S)

    def _verified(self, link: CheckingLink, layout: Layout) -> None:
        read = link.read_checked(layout.source, layout.views(self.own))
        if read is None:
            raise RuntimeError("nothing is checked on the way here")
        read.wait(DEADLINE_S)
        if pack(read.checksums) != layout.checksums:
            raise RuntimeError("blocks came with wrong checksums")

    def _messages_by_ucx(self, sock: socket.socket, receiver: ucx_messages.Receiver, layout: Layout) -> None:
        size = self.own.slot_bytes
        first = np.frombuffer(self.own.view, dtype=np.uint8).ctypes.data
        places = [first + slot * size for slot in layout.target]
        receiver.receive_blocks(places, size, lambda: self._ask(b"u", layout, sock))

    def _ask(self, how: bytes, layout: Layout, sock: socket.socket | None = None) -> None:
        slots = np.array(layout.source, dtype=np.int64)
        (sock or self._sock).sendall(how + len(slots).to_bytes(4, "little") + slots.tobytes())

    def _vectored(self, layout: Layout) -> None:
        self._ask(b"v", layout)
        self._fill(layout.blocks(self.own))

    def _gathered(self, layout: Layout) -> None:
        self._ask(b"g", layout)
        size = self.own.slot_bytes
        came = np.empty((len(layout.target), size), dtype=np.uint8)
        self._fill([came.data.cast("B")])
        np.frombuffer(self.own.view, dtype=np.uint8).reshape(-1, size)[np.array(layout.target)] = came

    def _messages(self, layout: Layout) -> None:
        self._ask(b"m", layout)
        head = memoryview(bytearray(8))
        for block in layout.blocks(self.own):
            self._fill([head])
            self._fill([block])

    def _fill(self, views: list[memoryview]) -> None:
        first = 0
        while first < len(views):
            came = self._sock.recvmsg_into(views[first : first + IOVECS])[0]
            if not came:
                raise RuntimeError("the owner ended")
            while first < len(views) and came >= len(views[first]):
                came -= len(views[first])
                first += 1
            if came:
                views[first] = views[first][came:]

    def _zmq_messages(self, layout: Layout) -> None:
        self._dealer.send(np.array(layout.source, dtype=np.int64).tobytes())
        for block in layout.blocks(self.own):
            block[:] = self._dealer.recv(copy=False).buffer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
