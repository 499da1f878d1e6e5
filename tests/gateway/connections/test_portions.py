"""Connections that send, begin, go on or end together share the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from distkv.client import turns as turns_module
from distkv.gateway.connections import http_connection as http_connection_module
from distkv.gateway.connections import portions as portions_module
from distkv.gateway.connections.http_connection import PART_BYTES, Connections, LimitedConnection
from distkv.gateway.connections.portions import Portions


class Ticks:
    """Counts turns of the event loop, and in which of them something happened."""

    def __init__(self) -> None:
        self.now = 0
        self.happened: list[tuple[str, int]] = []

    def note(self, what: str) -> None:
        self.happened.append((what, self.now))

    async def pass_(self, count: int) -> None:
        for _ in range(count):
            self.now += 1
            await asyncio.sleep(0)

    def order(self) -> list[str]:
        return [what for what, _ in self.happened]

    def most_in_a_turn(self) -> int:
        turns = [turn for _, turn in self.happened]
        return max(map(turns.count, turns))


async def test_a_turn_has_one_portion_for_all(monkeypatch) -> None:
    monkeypatch.setattr(portions_module, "TURN_S", 0.0)
    portions, ticks = Portions(10), Ticks()
    assert [portions.take(size) for size in (6, 5, 4, 1)] == [True, False, True, False]
    for name in "abc":
        portions.wait(lambda name=name: ticks.note(name))
    assert not portions.take(0), "others have waited for longer"
    await ticks.pass_(5)
    assert ticks.happened == [("a", 1), ("b", 2), ("c", 3)]
    assert portions.take(10) and not portions.take(1)
    await ticks.pass_(1)
    assert portions.take(10)


async def test_portions_that_take_no_time_share_a_turn(monkeypatch) -> None:
    monkeypatch.setattr(portions_module, "TURN_S", 60.0)
    portions, ticks = Portions(10), Ticks()
    for name in "abc":
        portions.wait(lambda name=name: ticks.note(name))
    await ticks.pass_(3)
    assert ticks.happened == [("a", 1), ("b", 1), ("c", 1)]


class Wire(asyncio.Transport):
    """The other end sends what `connection` is told it did; what goes back is lost."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Nowhere."""

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    def pause_reading(self) -> None:
        """Nothing comes by itself."""

    def resume_reading(self) -> None:
        """Nor after this."""


@pytest.fixture(autouse=True)
def one_in_a_turn(monkeypatch) -> None:
    """As where turns take long, however fast this machine is."""
    monkeypatch.setattr(turns_module, "MOST_WOKEN", 1)
    monkeypatch.setattr(http_connection_module, "LEAST_WOKEN", 1)


class Server:
    """Connections to an application that notes when each of its requests begins, has its body, and ends."""

    def __init__(self) -> None:
        self.ticks = Ticks()
        self._known = Connections(100)
        self._config = uvicorn.Config(
            self._app, interface="asgi3", lifespan="off", log_config=None, ws="none", proxy_headers=False
        )
        self._config.load()
        self._state = ServerState()

    def connected(self) -> LimitedConnection:
        one = LimitedConnection(self._known, config=self._config, server_state=self._state, app_state={})
        one.connection_made(Wire())
        return one

    async def _app(self, scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        self.ticks.note("begin " + scope["path"])
        message = await receive()
        while message.get("more_body"):
            message = await receive()
        self.ticks.note(message["type"].removeprefix("http.") + " " + scope["path"])


def post(path: str, body: bytes = b"x") -> bytes:
    return b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (path.encode(), len(body)) + body


async def test_requests_that_come_together_begin_one_after_the_other_and_health_checks_first() -> None:
    server = Server()
    for index in range(50):
        server.connected().data_received(post(f"/{index}"))
    server.connected().data_received(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
    await server.ticks.pass_(100)
    begun = [what for what in server.ticks.order() if what.startswith("begin")]
    assert begun == ["begin /0", "begin /live", *(f"begin /{index}" for index in range(1, 50))]
    assert len(server.ticks.happened) == 2 * len(begun)
    assert server.ticks.most_in_a_turn() == 2, "one begins, finds its body and ends"


async def test_what_many_send_is_read_a_portion_in_a_turn_and_health_checks_at_once(monkeypatch) -> None:
    """Bodies in chunks of one byte held the loop for 10 ms for each connection that sent one."""
    server, read_bytes = Server(), [0]
    read = HttpToolsProtocol.data_received

    def count(self: HttpToolsProtocol, data: bytes) -> None:
        read_bytes[-1] += len(data)
        read(self, data)

    monkeypatch.setattr(HttpToolsProtocol, "data_received", count)
    monkeypatch.setattr(portions_module, "TURN_S", 0.0)
    head = b"POST /long HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    long = head + b"1\r\nx\r\n" * PART_BYTES + b"0\r\n\r\n"
    for _ in range(10):
        server.connected().data_received(long)
    live = b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n"
    server.connected().data_received(live)
    assert read_bytes == [len(live)]
    turns = 0
    while sum(read_bytes) < 10 * len(long) + len(live):
        turns += 1
        assert turns < 1000
        read_bytes.append(0)
        await server.ticks.pass_(1)
    assert max(read_bytes) <= PART_BYTES
    await server.ticks.pass_(20)
    assert server.ticks.order().count("request /live") == 1 and server.ticks.order().count("request /long") == 10


async def test_a_connection_that_is_lost_while_it_waits_to_be_read_costs_the_others_nothing() -> None:
    server = Server()
    long = post("/long", b"x" * 3 * PART_BYTES)
    lost, stays = server.connected(), server.connected()
    lost.data_received(long)
    stays.data_received(long)
    lost.transport.close()
    lost.connection_lost(None)
    await server.ticks.pass_(20)
    assert server.ticks.order() == ["begin /long", "request /long"]


async def test_a_request_that_is_lost_before_its_turn_does_not_begin() -> None:
    server = Server()
    connections = [server.connected() for _ in range(3)]
    for index, one in enumerate(connections):
        one.data_received(post(f"/{index}"))
    connections[1].connection_lost(None)
    await server.ticks.pass_(10)
    assert [what for what in server.ticks.order() if what.startswith("begin")] == ["begin /0", "begin /2"]


async def test_bodies_that_end_together_go_on_one_after_the_other() -> None:
    server = Server()
    connections = [server.connected() for _ in range(20)]
    for index, one in enumerate(connections):
        one.data_received(post(f"/{index}", b"xy")[:-1])
    await server.ticks.pass_(50)
    server.ticks.happened.clear()
    for one in connections:
        one.data_received(b"y")
    await server.ticks.pass_(50)
    assert server.ticks.order() == [f"request /{index}" for index in range(20)]
    assert server.ticks.most_in_a_turn() <= 2, "the second had been woken by its bytes"


async def test_readers_that_leave_together_are_noticed_one_after_the_other() -> None:
    server = Server()
    connections = [server.connected() for _ in range(20)]
    for index, one in enumerate(connections):
        one.data_received(post(f"/{index}", b"xy")[:-1])
    await server.ticks.pass_(50)
    server.ticks.happened.clear()
    for one in connections:
        one.connection_lost(None)
    await server.ticks.pass_(50)
    assert server.ticks.order() == [f"disconnect /{index}" for index in range(20)]
    assert server.ticks.most_in_a_turn() == 1
