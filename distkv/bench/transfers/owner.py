"""The process that blocks are read from: by tensor links, and by what they are compared with.

`python -m distkv.bench.transfers.owner` says where it is reached and ends with its standard input.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Sequence

import msgspec
import numpy as np
import zmq

from distkv.bench.harness.line_process import LineProcess, say
from distkv.bench.transfers import ucx_messages
from distkv.bench.transfers.layouts import fill
from distkv.errors import ConfigError, LinkError
from distkv.types import Transport
from distkv.wire.links import LinkIdentity, PoolMemory, Registration, attach, listen, register, serve_read
from distkv.wire.links.base import TensorLink
from distkv.wire.links.transports.registry import OPTIONAL
from distkv.wire.messages.common import DataEndpoint
from distkv.wire.messages.data import Attach, ReadBlocks

IDENTITY = LinkIdentity(instance_id="owner", incarnation=1, compat="bench")
IOVECS = 1024
LINK_S = 3600.0


class Served(msgspec.Struct, frozen=True):
    """What an owner is started with."""

    host: str
    slot_bytes: int
    num_slots: int


class Reached(msgspec.Struct, frozen=True):
    """Where: by tensor links, by plain sockets, and by ZeroMQ."""

    endpoint: DataEndpoint
    port: int
    zmq_address: str


class Owner(LineProcess):
    """The process, seen from outside; ends with its context. through: a command that runs it."""

    def __init__(self, served: Served, through: Sequence[str] = ()) -> None:
        super().__init__("distkv.bench.transfers.owner", msgspec.json.encode(served).decode(), through=through)
        self.reached = self.answer(Reached)


def registered_with_all(pool: PoolMemory) -> dict[str, Registration]:
    """The pool, known to every optional transport whose package is installed."""
    registered: dict[str, Registration] = {}
    for name in OPTIONAL:
        transport: Transport = name  # type: ignore[assignment]
        with contextlib.suppress(ConfigError):
            registered |= register(pool, transport)
    return registered


def main(served: Served) -> None:
    """The process itself."""
    pool = PoolMemory(served.slot_bytes, served.num_slots)
    fill(pool)
    registered = registered_with_all(pool)
    listener = listen(f"{served.host}:0", IDENTITY, pool, insecure=True, registered=registered)
    plain = socket.create_server((served.host, 0))
    router: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    router.setsockopt(zmq.SNDHWM, 0)
    router.bind(f"tcp://{served.host}:0")

    def accept_links() -> None:
        while True:
            if link := listener.accept(LINK_S):
                threading.Thread(target=_serve_link, args=(link, pool, registered), daemon=True).start()

    def accept_sockets() -> None:
        while True:
            sock, _address = plain.accept()
            threading.Thread(target=_serve_socket, args=(sock, pool), daemon=True).start()

    for work in (accept_links, accept_sockets, lambda: _serve_zmq(router, pool)):
        threading.Thread(target=work, daemon=True).start()
    reached = Reached(listener.endpoint, plain.getsockname()[1], router.getsockopt_string(zmq.LAST_ENDPOINT))
    say(reached)
    sys.stdin.read()


def _serve_link(link: TensorLink, pool: PoolMemory, registered: dict[str, Registration]) -> None:
    with contextlib.suppress(LinkError):
        while True:
            header, body = link.recv(LINK_S)
            match header:
                case ReadBlocks():
                    serve_read(link, header, pool)
                case Attach():
                    attach(link, header, body, registered)
                case _:
                    link.send(header, body)


def _serve_socket(sock: socket.socket, pool: PoolMemory) -> None:
    """Answer requests: a byte that says how, the number of slots (u32), and the slots (i64). One more connects by UCX:
    behind its number of bytes it says how."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    size = pool.slot_bytes
    blocks = np.frombuffer(pool.view, dtype=np.uint8).reshape(pool.num_slots, size)
    gathered = np.empty(0, dtype=np.uint8)
    by_ucx: ucx_messages.Sender | None = None
    with sock, sock.makefile("rb") as requests:
        while head := requests.read(5):
            if head[:1] == b"U":
                told = requests.read(int.from_bytes(head[1:], "little"))
                by_ucx = ucx_messages.Sender(
                    msgspec.msgpack.decode(told, type=ucx_messages.Connect), sock.getsockname()[0]
                )
                continue
            slots = np.frombuffer(requests.read(8 * int.from_bytes(head[1:], "little")), dtype=np.int64)
            views = [pool.view[slot * size : (slot + 1) * size] for slot in slots.tolist()]
            if head[:1] == b"m":
                for view in views:
                    sock.sendmsg([size.to_bytes(8, "little")])
                    sock.sendall(view)
            elif head[:1] == b"u":
                assert by_ucx is not None
                by_ucx.send_blocks((blocks.ctypes.data + slots * size).tolist(), size)
            elif head[:1] == b"g":
                if gathered.nbytes != len(slots) * size:
                    gathered = np.empty(len(slots) * size, dtype=np.uint8)
                np.take(blocks, slots, axis=0, out=gathered.reshape(len(slots), size), mode="clip")
                sock.sendall(gathered.data)
            else:
                _send_vectored(sock, views)


def _send_vectored(sock: socket.socket, views: list[memoryview]) -> None:
    first = 0
    while first < len(views):
        sent = sock.sendmsg(views[first : first + IOVECS])
        while first < len(views) and sent >= len(views[first]):
            sent -= len(views[first])
            first += 1
        if sent:
            views[first] = views[first][sent:]


def _serve_zmq(router: zmq.Socket[bytes], pool: PoolMemory) -> None:
    size = pool.slot_bytes
    while True:
        reader, asked = router.recv_multipart()
        for slot in np.frombuffer(asked, dtype=np.int64).tolist():
            block = pool.view[slot * size : (slot + 1) * size]
            router.send_multipart([reader, block], copy=False)


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Served))
    # Its threads serve on, and what they read from is given back by the system.
    os._exit(0)
