"""An owner of a pool in a process of its own, which tests kill, stop and start again.

    python -m tests.wire.links.faults.owner TRANSPORT HOST:PORT INCARNATION

Slot i is full of the byte (incarnation + i) % 251. It says its endpoint on standard output, and serves.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from distkv.errors import LinkError, WireError
from distkv.wire.links import (
    LinkIdentity,
    Registration,
    Registrations,
    TensorLink,
    attach,
    connect,
    hello_to,
    listen,
    serve_read,
)
from distkv.wire.messages.common import DataEndpoint
from distkv.wire.messages.data import Attach, ReadBlocks
from tests.wire.links.peers import ATTACHED, AnyPool, pool_for, registered_by

TRANSPORTS = ("shm", "unix", "tcp", *ATTACHED)
SLOT_BYTES, NUM_SLOTS = 4096, 16_384
DEADLINE_S = 30.0


def byte_of(incarnation: int, slot: int) -> int:
    return (incarnation + slot) % 251


def registered_for(transport: str, pool: AnyPool) -> dict[str, Registration]:
    """Nothing, where the transport needs nothing."""
    return registered_by(transport if transport in ATTACHED else "tcp", pool)


def main(transport: str, address: str, incarnation: int) -> None:
    pool = pool_for(transport, SLOT_BYTES, NUM_SLOTS)
    slots = np.frombuffer(pool.view, dtype=np.uint8).reshape(NUM_SLOTS, SLOT_BYTES)
    slots[:] = (incarnation + np.arange(NUM_SLOTS) % 251).astype(np.int64)[:, None] % 251
    registered = registered_for(transport, pool)
    own = LinkIdentity(instance_id="owner", incarnation=incarnation, compat="same")
    listener = listen(address, own, pool, insecure=True, registered=registered)
    sys.stdout.buffer.write(msgspec.json.encode(listener.endpoint) + b"\n")
    sys.stdout.flush()
    while True:
        if link := listener.accept(DEADLINE_S):
            threading.Thread(target=_serve, args=(link, pool, registered), daemon=True).start()


def _serve(link: TensorLink, pool: AnyPool, registered: Registrations) -> None:
    attached: list[Registration] = []
    with contextlib.suppress(LinkError, WireError):
        while True:
            header, body = link.recv(3600.0)
            match header:
                case Attach():
                    attached.append(attach(link, header, body, registered))
                case ReadBlocks():
                    serve_read(link, header, pool)
                case _:
                    link.send(header, bytes(body))
    link.abort()
    for registration in attached:
        registration.detach(link)


class Owner:
    """The process, and links to it."""

    def __init__(self, transport: str, process: subprocess.Popen[bytes], incarnation: int) -> None:
        self.transport, self.process, self.incarnation = transport, process, incarnation
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the owner ended at its start"
        self.endpoint = msgspec.json.decode(line, type=DataEndpoint)

    def connect(
        self, registered: Registrations, *, incarnation: int | None = None, timeout_s: float = DEADLINE_S
    ) -> TensorLink:
        own = LinkIdentity(instance_id="reader", incarnation=1, compat="same")
        hello = hello_to(own, "owner", self.incarnation if incarnation is None else incarnation)
        return connect(self.endpoint, hello, timeout_s, self.transport, registered)  # type: ignore[arg-type]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def stop(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)


@contextlib.contextmanager
def running(transport: str, address: str = "", incarnation: int = 1, within: Sequence[str] = ()) -> Iterator[Owner]:
    """An owner; it is killed at the end. address: where it listens, on loopback if empty. within: a command that starts
    the one after it somewhere."""
    with contextlib.ExitStack() as stack:
        address = address or stack.enter_context(_kept_address())
        command = [*within, sys.executable, "-m", __name__, transport, address, str(incarnation)]
        process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
        try:
            yield Owner(transport, process, incarnation)
        finally:
            process.kill()


@contextlib.contextmanager
def _kept_address() -> Iterator[str]:
    """One that listeners have one after another, and nobody takes in between, as other tests would."""
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{keeper.getsockname()[1]}"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
