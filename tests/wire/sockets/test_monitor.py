"""A monitor that nobody reads stops nothing, and one that cannot be opened or closed as usual leaves nothing open."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import uvloop
import zmq

from distkv.errors import ConfigError, LinkClosed
from distkv.wire.channel import ClientChannel, ServerChannel
from distkv.wire.inboxes import CLIENT_CONNECTION, GMANAGER_PORT
from distkv.wire.sockets import monitor
from distkv.wire.sockets.monitor import Monitor
from distkv.wire.sockets.options import open_socket
from tests.waiting import DEADLINE_S, until
from tests.wire.channels.abort_recipes import handshaken

# Two events each, and ZeroMQ's own bound is 2,000 of them.
CONNECTIONS = 1_500


async def test_events_that_wait_do_not_stop_the_thread_that_tells_of_them() -> None:
    """The loop does nothing else here."""
    told: list[int] = []
    router = open_socket(zmq.ROUTER, ipv6=False)
    watching = Monitor(router, zmq.Event.ACCEPTED | zmq.Event.DISCONNECTED, lambda event, _value: told.append(event))
    try:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        for _ in range(CONNECTIONS):
            socket.create_connection(("127.0.0.1", port)).close()
        with handshaken(port):
            pass
        deadline = time.monotonic() + 20
        while len(told) < 2 * CONNECTIONS and time.monotonic() < deadline:
            watching._tell_some()
        assert len(told) >= 2 * CONNECTIONS
    finally:
        watching.close()
        router.close(0)


@dataclass
class Clock:
    """The time that `monitor` sees; each event takes `event_s` of it."""

    event_s: float
    now_s: float = 0.0

    def monotonic(self) -> float:
        return self.now_s


class Told:
    """A router whose monitor notes its connections; `act` is done for each event."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.events: list[int] = []
        self.act = act
        self.router = open_socket(zmq.ROUTER, ipv6=False)
        self.monitor = Monitor(self.router, zmq.Event.ACCEPTED | zmq.Event.DISCONNECTED, self.note)
        self.port = self.router.bind_to_random_port("tcp://127.0.0.1")

    def note(self, event: int, _value: int) -> None:
        self.events.append(event)
        self.act()

    def come_and_go(self, times: int) -> None:
        for _ in range(times):
            socket.create_connection(("127.0.0.1", self.port)).close()

    def close(self) -> None:
        self.monitor.close()
        self.router.close(0)


async def test_what_happens_all_the_time_leaves_the_loop_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, turn_events = Clock(event_s=monitor._TURN_S / 2), [0]

    def pass_time() -> None:
        clock.now_s += clock.event_s
        turn_events[-1] += 1

    told = Told(pass_time)
    monkeypatch.setattr(monitor, "time", clock)
    try:
        told.come_and_go(20)
        async with asyncio.timeout(DEADLINE_S):
            while len(told.events) < 40:
                await asyncio.sleep(0)
                turn_events.append(0)
        assert max(turn_events) <= 2
    finally:
        told.close()


async def test_an_error_of_one_event_is_one_of_the_loop_and_the_next_is_told() -> None:
    failures: list[Any] = []

    def fail_once() -> None:
        if len(told.events) == 1:
            raise ValueError("this one")

    told = Told(fail_once)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: failures.append(context["exception"]))
    try:
        told.come_and_go(2)
        await until(lambda: len(told.events) == 4)
        assert [str(failure) for failure in failures] == ["this one"]
    finally:
        loop.set_exception_handler(None)
        told.close()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[zmq.Socket[bytes]]:
    """Every ZeroMQ socket that is opened."""
    sockets: list[zmq.Socket[bytes]] = []
    open_one = zmq.Context.socket

    def note(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
        sockets.append(open_one(context, kind))
        return sockets[-1]

    monkeypatch.setattr(zmq.Context, "socket", note)
    return sockets


@pytest.mark.parametrize("fails", ["connect", "get", "monitor"])
async def test_one_that_cannot_be_opened_leaves_nothing_open(
    opened: list[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    with monkeypatch.context() as broken:

        def fail(*_: object) -> None:
            raise zmq.ZMQError(errno.EMFILE)

        broken.setattr(zmq.Socket, fails, fail)
        with pytest.raises(LinkClosed):
            ClientChannel.connect("tcp://127.0.0.1:1", CLIENT_CONNECTION)
        with pytest.raises(ConfigError):
            ServerChannel.bind("tcp://127.0.0.1:0", GMANAGER_PORT)
    assert len(opened) >= 3 and all(one.closed for one in opened)


async def test_a_server_without_a_monitor_leaves_nothing_open(
    opened: list[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    note = zmq.Context.socket

    def no_monitor(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
        if kind == zmq.PAIR:
            raise zmq.ZMQError(errno.EMFILE)
        return note(context, kind)

    monkeypatch.setattr(zmq.Context, "socket", no_monitor)
    with pytest.raises(ConfigError):
        ServerChannel.bind("tcp://127.0.0.1:0", GMANAGER_PORT)
    with pytest.raises(LinkClosed):
        ClientChannel.connect("tcp://127.0.0.1:1", CLIENT_CONNECTION)
    assert len(opened) == 2 and all(one.closed for one in opened)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_one_whose_loop_is_gone_is_closed_all_the_same(opened: list[zmq.Socket[bytes]], run: Any) -> None:
    async def connect() -> ClientChannel[Any]:
        return ClientChannel.connect("tcp://127.0.0.1:1", CLIENT_CONNECTION)

    channel = run(connect())
    channel.abort()
    assert len(opened) == 2 and all(one.closed for one in opened)
