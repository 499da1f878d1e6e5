"""Connections on their way in: who is served first, and what becomes of the others."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest
import uvloop

from distkv.client import turns as turns_module
from distkv.client.owned_tasks import OwnedTasks
from distkv.client.turns import Turns, Wake
from distkv.gateway.connections import acceptor as module
from distkv.gateway.connections.acceptor import Acceptor

LIVE, OTHER = b"GET /live HTTP/1.1\r\n", b"POST /v1/completions HTTP/1.1\r\n"


@pytest.fixture(autouse=True)
def one_in_a_turn(monkeypatch) -> None:
    """As where turns take long; all that wait are accepted in the first one."""
    monkeypatch.setattr(turns_module, "MOST_WOKEN", 1)
    monkeypatch.setattr(module, "ACCEPT_S", 60.0)


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Any:
    return request.param


class Door:
    """An Acceptor, and those that it has served in their order, by their ports."""

    def __init__(self, listener: socket.socket, stack: ExitStack) -> None:
        self.listener, self.stack = listener, stack
        self.served: list[int] = []

    def call(self, said: bytes = b"", host: str = "127.0.0.1") -> socket.socket:
        """A connection that has said something."""
        one = self.stack.enter_context(socket.create_connection(self.listener.getsockname(), source_address=(host, 0)))
        one.sendall(said)
        return one

    def make(self) -> asyncio.Protocol:
        return _Served(self)

    def begin(self, tasks: OwnedTasks, most: int = 1000, turns: Turns | None = None) -> Acceptor:
        self.acceptor = Acceptor(self.listener, self.make, most, turns or Turns(), tasks)
        return self.acceptor

    async def has_served(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.served) < count:  # noqa: ASYNC110 - turns of the loop are what is counted
                await asyncio.sleep(0)


class FailingListener(socket.socket):
    """Fails with its `failures` first. left: how many there were each time that room was made."""

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(fileno=listener.dup().detach())
        self.failures: list[OSError] = []
        self.left: list[int] = []

    def accept(self) -> tuple[socket.socket, Any]:
        if self.failures:
            raise self.failures.pop(0)
        return super().accept()

    def make_room(self) -> bool:
        self.left.append(len(self.failures))
        return True


class _Served(asyncio.Protocol):
    def __init__(self, door: Door) -> None:
        self._door = door

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._door.served.append(transport.get_extra_info("peername")[1])
        self._door.stack.callback(transport.abort)  # type: ignore[attr-defined]


@asynccontextmanager
async def door() -> AsyncIterator[tuple[Door, OwnedTasks]]:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1000))
        listener.setblocking(False)
        one = Door(listener, stack)
        async with OwnedTasks() as tasks:
            try:
                yield one, tasks
            finally:
                one.acceptor.close()
                stack.close()
                await asyncio.sleep(0)
                await asyncio.sleep(0)


class OnlyUrgent(Turns):
    """As where so many wait for their turn that nobody has one."""

    def take(self, one: Wake, *, urgent: bool = False) -> None:
        if urgent:
            one()


def port(one: socket.socket) -> int:
    return int(one.getsockname()[1])


def test_those_that_leave_make_room_for_others_before_it_is_their_turn(run: Any) -> None:
    async def body() -> None:
        async with door() as (here, tasks):
            for said in (OTHER, b"") * 4:
                here.call(said).close()
            stays = here.call(OTHER)
            here.begin(tasks, most=2, turns=OnlyUrgent())
            live = here.call(LIVE)
            await here.has_served(1)
            assert here.served == [port(live)]
            stays.close()

    run(body())


def test_a_health_check_is_served_before_all_that_came_before_it(run: Any) -> None:
    async def body() -> None:
        async with door() as (here, tasks):
            for _ in range(100):
                here.call(OTHER)
            live = here.call(LIVE)
            here.begin(tasks)
            await here.has_served(101)
            assert here.served.index(port(live)) <= 1

    run(body())


def test_a_health_check_that_comes_when_its_connection_waits_already_is_served_before_others(run: Any) -> None:
    async def body() -> None:
        async with door() as (here, tasks):
            for _ in range(200):
                here.call(OTHER)
            late, silent = here.call(), here.call()
            here.begin(tasks)
            await here.has_served(1)
            late.sendall(LIVE)
            await here.has_served(202)
            assert here.served.index(port(late)) < 100 < here.served.index(port(silent))

    run(body())


def test_addresses_take_turns(run: Any) -> None:
    async def body() -> None:
        async with door() as (here, tasks):
            for _ in range(50):
                here.call(OTHER)
            others = [here.call(OTHER, host="127.0.0.2") for _ in range(2)]
            here.begin(tasks)
            await here.has_served(52)
            first, second = (here.served.index(port(one)) for one in others)
            assert first <= 2 and second <= first + 2

    run(body())


def test_one_that_has_left_costs_nothing_more(run: Any) -> None:
    async def body() -> None:
        async with door() as (here, tasks):
            first = here.call(OTHER)
            for _ in range(20):
                here.call().close()
            last = here.call(OTHER)
            here.begin(tasks)
            await here.has_served(2)
            assert here.served == [port(first), port(last)]

    run(body())


def test_more_than_may_wait_are_left_to_the_system_until_there_is_room(run: Any) -> None:
    async def body() -> None:
        async with door() as (here, tasks):
            ports = [port(here.call(OTHER)) for _ in range(30)]
            acceptor = here.begin(tasks, most=4)
            most = 0
            async with asyncio.timeout(30):
                while len(here.served) < 30:
                    most = max(most, len(acceptor._waiting))
                    await asyncio.sleep(0)
            assert here.served == ports and most == 4

    run(body())


def test_without_descriptors_it_goes_on_later(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.01)
    failures = [OSError(errno.EMFILE, "Too many open files"), ConnectionAbortedError()]

    class Listener(socket.socket):
        def accept(self) -> tuple[socket.socket, Any]:
            if failures:
                raise failures.pop(0)
            return super().accept()

    async def body() -> None:
        async with door() as (here, tasks):
            here.listener = here.stack.enter_context(
                Listener(fileno=here.listener.dup().detach())  # the same queue of connections
            )
            one = here.call(OTHER)
            here.begin(tasks)
            await here.has_served(1)
            assert here.served == [port(one)] and not failures

    run(body())


def test_without_descriptors_another_one_makes_room(run: Any) -> None:
    """A gateway with 64 descriptors and 300 half-open connections answered no health check for as long as they came."""

    async def body() -> None:
        async with door() as (here, tasks):
            failing = here.listener = here.stack.enter_context(FailingListener(here.listener))
            failing.failures += [OSError(number, os.strerror(number)) for number in (errno.EMFILE, errno.ENFILE)]
            one = here.call(OTHER)
            here.acceptor = Acceptor(failing, lambda: _Served(here), 1000, Turns(), tasks, None, failing.make_room)
            await here.has_served(1)
            assert here.served == [port(one)] and failing.left == [1, 0]

    run(body())


def test_what_waits_is_closed_with_it(run: Any) -> None:
    async def body() -> None:
        async with door() as (here, tasks):
            callers = [here.call(OTHER) for _ in range(20)]
            acceptor = here.begin(tasks)
            await here.has_served(1)
            acceptor.close()
            acceptor.close()
            assert not acceptor._waiting
            for one in callers[10:]:
                one.settimeout(10)
                assert _is_over(one)

    run(body())


def _is_over(one: socket.socket) -> bool:
    try:
        return one.recv(1) == b""
    except ConnectionResetError:
        return True
