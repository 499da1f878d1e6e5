"""An owner in a process of its own, and those who read from it. As a program: the owner, at the given address."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Self

import msgspec

from distkv.errors import LinkError, WireError
from distkv.wire.links import BlockRead, PoolMemory, TensorLink, attach, connect, hello_to, listen, register
from distkv.wire.messages.common import DataEndpoint
from distkv.wire.messages.data import Attach
from tests.wire.links.peers import DEADLINE_S, OWN, PEER

SLOT_BYTES, NUM_SLOTS = 64 * 1024, 64


def cma_problem() -> str:
    """Why one process may not read another here; "" if it may."""
    number = ctypes.c_uint64(7)
    place = (ctypes.c_uint64 * 2)(ctypes.addressof(number), 8)
    libc = ctypes.CDLL(None, use_errno=True)
    read = libc.process_vm_readv(os.getpid(), place, 1, place, 1, 0)
    return "" if read == 8 else f"the system forbids CMA: {os.strerror(ctypes.get_errno())}"


class Owner:
    """The process. Block i of its pool is filled with i + 1. through: a command that is to run it."""

    def __init__(self, address: str = "127.0.0.1:0", through: tuple[str, ...] = (), **environment: str) -> None:
        command = [*through, sys.executable, "-m", __name__, address]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | environment)
        assert self.process.stdout is not None
        self.endpoint = msgspec.json.decode(self.process.stdout.readline(), type=DataEndpoint)

    def stop(self) -> None:
        """Not a line of it runs when this returns."""
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Asking:
    """This process, as one that reads. memory: where what it reads may arrive."""

    def __init__(self, memory: PoolMemory) -> None:
        self.memory = memory
        self._registered = register(memory, "ucx")
        self._links: list[TensorLink] = []

    def link(self, endpoint: DataEndpoint, timeout_s: float = DEADLINE_S) -> TensorLink:
        hello = hello_to(OWN, PEER.instance_id, PEER.incarnation)
        self._links.append(connect(endpoint, hello, timeout_s, "ucx", self._registered))
        return self._links[-1]

    def start(self, link: TensorLink) -> BlockRead:
        """Read the whole of a pool."""
        return link.read_blocks(range(NUM_SLOTS), [self.memory.view])

    def reads_rightly(self, link: TensorLink) -> bool:
        self.start(link).wait(DEADLINE_S)
        return self.memory.view == b"".join(bytes([slot + 1]) * SLOT_BYTES for slot in range(NUM_SLOTS))

    def close(self) -> None:
        for link in self._links:
            link.abort()
        self._registered["ucx"].close()


@contextlib.contextmanager
def asking_process() -> Iterator[Asking]:
    with PoolMemory(SLOT_BYTES, NUM_SLOTS) as memory, contextlib.closing(Asking(memory)) as asking:
        yield asking


def main() -> None:
    pool = PoolMemory(SLOT_BYTES, NUM_SLOTS)
    for slot in range(NUM_SLOTS):
        pool.view[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES] = bytes([slot + 1]) * SLOT_BYTES
    registered = register(pool, "ucx")
    listener = listen(sys.argv[1], PEER, pool, insecure=True, registered=registered)

    def serve(link: TensorLink) -> None:
        with contextlib.suppress(LinkError, WireError):
            while True:
                header, body = link.recv(60)
                if isinstance(header, Attach):
                    attach(link, header, body, registered)
                else:
                    link.send(header, bytes(body))
        link.abort()

    sys.stdout.buffer.write(msgspec.json.encode(listener.endpoint) + b"\n")
    sys.stdout.flush()
    while True:
        if link := listener.accept(60):
            threading.Thread(target=serve, args=(link,), daemon=True).start()


if __name__ == "__main__":
    main()
