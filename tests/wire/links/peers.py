"""The two ends of a link under test: a listener with its serving thread, and ways to reach it."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from distkv.errors import ConfigError, LinkClosed, LinkError, LinkTimeout, WireError
from distkv.wire.links import (
    LinkIdentity,
    LinkListener,
    PoolMemory,
    Registration,
    Registrations,
    TensorLink,
    attach,
    connect,
    hello_to,
    listen,
    register,
    serve_read,
)
from distkv.wire.links.transports.registry import OPTIONAL
from distkv.wire.messages.common import DataEndpoint
from distkv.wire.messages.data import Attach, Hello, ReadBlocks

if TYPE_CHECKING:
    from tests.wire.links.device_pools import DevicePoolOnHost

CARRIERS = ("inproc", "shm", "unix", "tcp")
TRANSPORTS = (*CARRIERS, "cuda_ipc", *OPTIONAL)
ATTACHED = ("cuda_ipc", *OPTIONAL)
DEADLINE_S = 20.0
SLOT_BYTES, NUM_SLOTS = 4096, 64

OWN = LinkIdentity(instance_id="a", incarnation=3, compat="same")
PEER = LinkIdentity(instance_id="b", incarnation=7, compat="same")
AnyPool: TypeAlias = "PoolMemory | DevicePoolOnHost"
_names = itertools.count()


_registered: dict[str, Registrations] = {}
"""By the addresses of listeners: both ends of a link under test are known by the same registration."""


@functools.cache
def why_not(transport: str) -> str:
    """Why this transport cannot be tested here; "" if it can."""
    if transport in OPTIONAL:
        try:
            with random_pool() as pool:
                OPTIONAL[transport].register(pool).close()
        except ConfigError as error:
            return str(error)
    if transport == "cuda_ipc":
        from tests.engine.device import fake_cuda

        return fake_cuda.why_not()
    return ""


class AttachingListener:
    """A listener over a registered pool, that lets peers attach to it before a test gets the link."""

    def __init__(self, address: str, pool: AnyPool, transport: str) -> None:
        self._registered = registered_by(transport, pool)
        self._listener = listen(address, PEER, pool, registered=self._registered)
        _registered[self.address] = self._registered

    @property
    def address(self) -> str:
        return self._listener.address

    @property
    def endpoint(self) -> DataEndpoint:
        return self._listener.endpoint

    @property
    def malformed(self) -> int:
        return self._listener.malformed

    @property
    def refused(self) -> int:
        return self._listener.refused

    def accept(self, timeout_s: float) -> TensorLink | None:
        link = self._listener.accept(timeout_s)
        if link is None:
            return None
        try:
            header, body = link.recv(DEADLINE_S)
            assert isinstance(header, Attach)
            attach(link, header, body, self._registered)
        except LinkClosed:
            link.abort()
            return None
        return link

    def close(self) -> None:
        self._listener.close()
        for registration in _registered.pop(self.address, {}).values():
            registration.close()


def registered_by(transport: str, pool: AnyPool) -> dict[str, Registration]:
    """As a process registers its pool that insists on a transport."""
    if isinstance(pool, PoolMemory):
        return register(pool, transport)  # type: ignore[arg-type]
    return {transport: pool.registered()}


def listen_on(transport: str, pool: AnyPool) -> LinkListener:
    if transport in ATTACHED:
        return AttachingListener("127.0.0.1:0", pool, transport)
    address = f"inproc://test-{os.getpid()}-{next(_names)}" if transport == "inproc" else "127.0.0.1:0"
    return listen(address, PEER, pool)


def connect_by(
    transport: str, endpoint: DataEndpoint, hello: Hello | None = None, timeout_s: float = 5.0
) -> TensorLink:
    forced = "auto" if transport == "inproc" else transport
    hello = hello or hello_to(OWN, PEER.instance_id, PEER.incarnation)
    return connect(endpoint, hello, timeout_s, forced, _registered.get(endpoint.address, {}))  # type: ignore[arg-type]


def pool_for(transport: str, slot_bytes: int = SLOT_BYTES, num_slots: int = NUM_SLOTS) -> AnyPool:
    """Such as it carries, zeroed."""
    if transport == "cuda_ipc":
        # Others need no torch, and start sooner.
        from tests.wire.links.device_pools import DevicePoolOnHost

        return DevicePoolOnHost(slot_bytes, num_slots)
    return PoolMemory(slot_bytes, num_slots)


def random_pool(slot_bytes: int = SLOT_BYTES, num_slots: int = NUM_SLOTS) -> PoolMemory:
    pool = PoolMemory(slot_bytes, num_slots)
    pool.view[:] = secrets.token_bytes(len(pool.view))
    return pool


@dataclass
class Pair:
    """A link seen from both ends."""

    asking: TensorLink
    answering: TensorLink
    pool: AnyPool
    listener: LinkListener

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """The answering end answers reads in a thread meanwhile."""
        with in_thread(lambda: serve(self.answering, self.pool)):
            try:
                yield
            finally:
                self.asking.close()


def serve(link: TensorLink, pool: AnyPool) -> None:
    with contextlib.suppress(LinkError, WireError):
        while True:
            header, _body = link.recv(DEADLINE_S)
            if isinstance(header, ReadBlocks):
                serve_read(link, header, pool)
            else:
                link.send(header, bytes(_body))


@contextlib.contextmanager
def in_thread(run: Callable[[], object]) -> Iterator[threading.Thread]:
    failed: list[BaseException] = []

    def guarded() -> None:
        try:
            run()
        except BaseException as e:
            failed.append(e)

    thread = threading.Thread(target=guarded)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(DEADLINE_S)
    assert not thread.is_alive()
    if failed:
        raise failed[0]


@contextlib.contextmanager
def open_pair(transport: str, pool: AnyPool | None = None) -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        if pool is None:
            own_pool = stack.enter_context(contextlib.closing(pool_for(transport)))
            own_pool.view[:] = secrets.token_bytes(len(own_pool.view))
        else:
            own_pool = pool
        listener = listen_on(transport, own_pool)
        stack.callback(listener.close)
        accepted: list[TensorLink] = []

        def accept() -> None:
            link = listener.accept(DEADLINE_S)
            assert link is not None
            accepted.append(link)

        with in_thread(accept):
            asking = connect_by(transport, listener.endpoint)
        stack.callback(asking.abort)
        stack.callback(accepted[0].abort)
        yield Pair(asking, accepted[0], own_pool, listener)


@contextlib.contextmanager
def accepting(listener: LinkListener, links: list[TensorLink]) -> Iterator[None]:
    """A thread that accepts into `links` until the block ends; closes the listener then."""

    def loop() -> None:
        with contextlib.suppress(LinkError):
            while True:
                with contextlib.suppress(LinkTimeout):
                    if link := listener.accept(DEADLINE_S):
                        links.append(link)

    try:
        with in_thread(loop):
            try:
                yield
            finally:
                listener.close()
    finally:
        for link in links:
            link.abort()
