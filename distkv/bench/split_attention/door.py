"""How one process is reached over one link, and how it reaches the others."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence

import msgspec

from distkv.actors.worker.links.link_server import LinkServer
from distkv.bench.split_attention.network import Place, within
from distkv.bench.split_attention.ways import HOST, Link
from distkv.bench.workloads.computing.creditor import COMPAT
from distkv.engine.attention.serving import AttendServer
from distkv.wire.links import LinkIdentity, PoolMemory, TensorLink, connect, hello_to, listen
from distkv.wire.messages.common import DataEndpoint, Member

CONNECT_S = 30.0


class Reached(msgspec.Struct, frozen=True):
    """Over one link: by tensor links, and by plain sockets: an address, or the name of a Unix socket."""

    endpoint: DataEndpoint
    address: tuple[str, int] | str


class Door:
    """Of one process over one link. Its sockets are of `place`, where there is one, and else of its host; `server` and
    `memory` are served until the process ends."""

    def __init__(self, process: int, link: Link, place: Place | None, server: AttendServer, memory: PoolMemory) -> None:
        self._process, self._link, self._place = process, link, place
        with within(place):
            host = "127.0.0.1" if place is None else place.address
            listener = listen(f"{host}:0", _identity(process), memory, insecure=place is not None)
            self._plain = _listening(place)
        name = self._plain.getsockname()
        address = name[1:].decode() if isinstance(name, bytes) else (str(name[0]), int(name[1]))
        self.reached = Reached(listener.endpoint, address)
        threading.Thread(target=LinkServer(listener, server, memory).run, daemon=True).start()

    def member(self, process: int, reached: Reached) -> Member:
        """Another process as a creditor."""
        return Member(instance_id=_name(process), incarnation=1, address="", state="ready", data=reached.endpoint)

    def links(self, everyone: Sequence[Reached]) -> dict[int, TensorLink]:
        """Tensor links to all other processes."""
        with within(self._place):
            return {
                process: connect(
                    reached.endpoint,
                    hello_to(_identity(self._process), _name(process), 1),
                    CONNECT_S,
                    "shm" if self._link == HOST else "tcp",
                )
                for process, reached in enumerate(everyone)
                if process != self._process
            }

    def sockets(self, everyone: Sequence[Reached]) -> dict[int, socket.socket]:
        """Plain sockets to all other processes: this one connects to those before it, those behind it do to it."""
        found: dict[int, socket.socket] = {}
        for process, reached in enumerate(everyone[: self._process]):
            with within(self._place):
                found[process] = _connected(reached.address)
            found[process].sendall(bytes([self._process]))
        self._plain.settimeout(CONNECT_S)
        while len(found) < len(everyone) - 1:
            sock, _ = self._plain.accept()
            sock.settimeout(CONNECT_S)
            found[sock.recv(1)[0]] = sock
        for sock in found.values():
            if sock.family == socket.AF_INET:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return found


def _listening(place: Place | None) -> socket.socket:
    if place is not None:
        return socket.create_server((place.address, 0))
    sock = socket.socket(socket.AF_UNIX)
    sock.bind("")
    sock.listen()
    return sock


def _connected(address: tuple[str, int] | str) -> socket.socket:
    if not isinstance(address, str):
        return socket.create_connection(address, CONNECT_S)
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(f"\0{address}")
    return sock


def _name(process: int) -> str:
    return f"process-{process}"


def _identity(process: int) -> LinkIdentity:
    return LinkIdentity(instance_id=_name(process), incarnation=1, compat=COMPAT)
