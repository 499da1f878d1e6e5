"""TLS handshakes that never begin, and those of others."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from distkv.client.owned_tasks import OwnedTasks
from distkv.client.turns import Turns
from distkv.gateway.connections import acceptor as module
from distkv.gateway.connections import http_server
from distkv.gateway.connections.acceptor import Acceptor
from tests.gateway.connections.test_acceptor import Door, FailingListener, door
from tests.gateway.connections.test_http_connection import LIVE

Certificate = tuple[Path, Path]
Body = Callable[[Door, OwnedTasks], Awaitable[None]]


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Body], None]:
    def run_with_door(body: Body) -> None:
        async def with_door() -> None:
            async with door() as (here, tasks):
                await body(here, tasks)

        request.param(with_door())

    return run_with_door


@pytest.fixture
def tls(certificate: Certificate) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


@pytest.fixture
def trusting(certificate: Certificate) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificate[0])


def begin(
    here: Door, tasks: OwnedTasks, tls: ssl.SSLContext, most: int, room: int, make_room: Any = lambda: False
) -> Acceptor:
    here.acceptor = Acceptor(here.listener, here.make, most, Turns(), tasks, tls, make_room, room=lambda: room)
    return here.acceptor


async def has_begun(acceptor: Acceptor, count: int) -> None:
    """So many handshakes are under way, and nobody waits for one."""
    async with asyncio.timeout(20):
        while len(acceptor._handshakes) < count or acceptor._waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def is_closed(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(one, 1), 20) == b""
    except ConnectionError:
        return True


def is_open(one: socket.socket) -> bool:
    one.setblocking(False)
    with pytest.raises(BlockingIOError):
        one.recv(1)
    return True


async def is_served(here: Door, trusting: ssl.SSLContext) -> None:
    """A client that speaks TLS."""
    _, writer = await asyncio.open_connection(*here.listener.getsockname(), ssl=trusting)
    await here.has_served(len(here.served) or 1)
    assert here.served[-1] == writer.get_extra_info("sockname")[1]
    writer.transport.abort()


@pytest.mark.parametrize(("most", "room", "expected"), [(2, 3, 3), (8, 0, 4), (1, 0, 1)])
def test_one_more_ends_the_oldest(
    run: Any, tls: ssl.SSLContext, trusting: ssl.SSLContext, most: int, room: int, expected: int
) -> None:
    async def body(here: Door, tasks: OwnedTasks) -> None:
        acceptor = begin(here, tasks, tls, most, room)
        silent = []
        for _ in range(expected):
            silent.append(here.call())
            await has_begun(acceptor, len(silent))
        assert len(acceptor._handshakes) == expected
        await is_served(here, trusting)
        assert await is_closed(silent[0])
        assert all(map(is_open, silent[1:])) and len(acceptor._handshakes) == expected - 1

    run(body)


def test_they_count_among_those_that_wait_where_there_is_no_room(run: Any, tls: ssl.SSLContext) -> None:
    most = 0

    async def body(here: Door, tasks: OwnedTasks) -> None:
        nonlocal most
        acceptor = begin(here, tasks, tls, 6, 0)
        silent = [here.call() for _ in range(40)]
        last_cut = asyncio.ensure_future(is_closed(silent[36]))
        while not last_cut.done():
            most = max(most, len(acceptor._waiting) + len(acceptor._handshakes))
            await asyncio.sleep(0)
        assert last_cut.result() and all(map(is_open, silent[37:]))

    run(body)
    assert most == 6


def test_a_handshake_has_a_deadline(run: Any, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HANDSHAKE_S", 0.1)

    async def body(here: Door, tasks: OwnedTasks) -> None:
        acceptor = begin(here, tasks, tls, 8, 8)
        assert await is_closed(here.call())
        assert not acceptor._handshakes and not here.served

    run(body)


def test_without_descriptors_the_oldest_handshake_goes_first(
    run: Any, tls: ssl.SSLContext, trusting: ssl.SSLContext
) -> None:
    async def body(here: Door, tasks: OwnedTasks) -> None:
        failing = here.listener = here.stack.enter_context(FailingListener(here.listener))
        acceptor = begin(here, tasks, tls, 8, 8, failing.make_room)
        silent = [here.call() for _ in range(2)]
        await has_begun(acceptor, 2)
        failing.failures += [OSError(errno.EMFILE, "Too many open files")] * 3
        await is_served(here, trusting)
        assert [await is_closed(one) for one in silent] == [True, True]
        assert failing.left == [0]

    run(body)


def test_those_under_way_are_closed_with_it(run: Any, tls: ssl.SSLContext) -> None:
    async def body(here: Door, tasks: OwnedTasks) -> None:
        acceptor = begin(here, tasks, tls, 8, 8)
        silent = here.call()
        await has_begun(acceptor, 1)
        acceptor.close()
        assert await is_closed(silent)

    run(body)


async def test_silent_ones_end_nobody_who_is_served(
    start: Any, certificate: Certificate, trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "most_connections", lambda: 8)
    monkeypatch.setattr(http_server, "most_waiting", lambda: 8)
    gateway = await start(ssl_certfile=str(certificate[0]), ssl_keyfile=str(certificate[1]))
    host, address_port = gateway.url.removeprefix("https://").split(":")

    async def live(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(LIVE)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        assert head.startswith(b"HTTP/1.1 200 ")
        await reader.readexactly(len(b'{"status":"ok"}'))

    served = await asyncio.open_connection(host, int(address_port), ssl=trusting)
    await live(*served)
    silent = [await asyncio.open_connection(host, int(address_port)) for _ in range(50)]
    another = await asyncio.open_connection(host, int(address_port), ssl=trusting)
    for _ in range(2):
        await live(*served)
        await live(*another)
    assert await asyncio.wait_for(silent[0][0].read(), 20) == b""
    for _, writer in (served, another, *silent):
        writer.close()
