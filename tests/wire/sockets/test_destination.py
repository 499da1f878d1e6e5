"""A name that is connected to is looked up beside ZeroMQ, again where it cannot be reached."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from distkv.wire.sockets.destination import Destination
from distkv.wire.sockets.options import SEND_QUEUE_MESSAGES
from tests.threads import no_threads
from tests.waiting import until
from tests.wire.name_server import NAME, NameServer, name_server


class Socket:
    """Notes what it is told. endpoint: that it connects to now."""

    def __init__(self) -> None:
        self.tried: list[str] = []
        self.endpoint: str | None = None
        self.unread = False

    def connect(self, endpoint: str) -> None:
        assert self.endpoint is None
        self.tried.append(endpoint)
        self.endpoint = endpoint

    def disconnect(self, endpoint: str) -> None:
        assert self.endpoint == endpoint
        self.endpoint = None

    def has_unread(self) -> bool:
        return self.unread


@pytest.fixture
def server() -> Iterator[NameServer]:
    with name_server() as server:
        yield server


def destination_of(socket: Socket, host: str = NAME) -> Destination:
    return Destination(socket, host, 7071, longest_retry_s=0.1)


async def test_an_address_is_connected_to_at_once_and_left_to_zeromq(server: NameServer) -> None:
    for host, endpoint in ("127.0.0.2", "tcp://127.0.0.2:7071"), ("::1", "tcp://[::1]:7071"):
        socket = Socket()
        with no_threads():
            destination = destination_of(socket, host)
            destination.start()
            destination.failed()
        assert socket.endpoint == endpoint and not destination.keeps
        assert destination.close() == []


async def test_addresses_of_a_name_are_tried_in_turn_those_of_ipv6_last(server: NameServer) -> None:
    server.addresses = "::1", "127.0.0.2", "127.0.0.3", "127.0.0.2"
    server.may_answer.set()
    socket = Socket()
    destination = destination_of(socket)
    destination.start()
    for attempts in range(1, 6):
        await until(lambda: len(socket.tried) == attempts)  # noqa: B023 - it is over before the next
        destination.failed()
        destination.failed()
    two, three, six = "tcp://127.0.0.2:7071", "tcp://127.0.0.3:7071", "tcp://[::1]:7071"
    assert socket.tried == [two, three, six, two, three]
    destination.close()


async def test_a_name_that_is_not_known_is_asked_for_until_it_is(server: NameServer) -> None:
    server.fails = True
    server.may_answer.set()
    socket = Socket()
    destination = destination_of(socket)
    destination.start()
    await until(lambda: server.asked >= 3)
    assert not socket.tried
    server.fails = False
    await until(lambda: socket.endpoint is not None)
    destination.close()


async def test_the_address_known_last_is_kept_while_nobody_answers_and_replaced_once_it_is_old(
    server: NameServer,
) -> None:
    server.may_answer.set()
    socket = Socket()
    destination = destination_of(socket)
    destination.start()
    await until(lambda: socket.endpoint is not None)
    server.fails = True
    destination.failed()
    await until(lambda: server.asked == 2)
    server.fails, server.addresses = False, ("127.0.0.9",)
    await until(lambda: destination._answer is None)
    assert socket.tried == ["tcp://127.0.0.1:7071"]
    socket.unread = True  # what came by the old connection is read first
    destination.failed()
    await until(lambda: server.asked == 3 and destination._answer is None)
    assert socket.tried == ["tcp://127.0.0.1:7071"]
    socket.unread = False
    destination.failed()
    await until(lambda: socket.endpoint == "tcp://127.0.0.9:7071")
    destination.close()


async def test_what_is_reached_meanwhile_stays(server: NameServer) -> None:
    server.may_answer.set()
    socket = Socket()
    destination = destination_of(socket)
    destination.start()
    await until(lambda: socket.endpoint is not None)
    server.may_answer.clear()
    server.addresses = ("127.0.0.9",)
    destination.failed()
    await until(lambda: server.asked == 2)
    destination.reached()
    server.may_answer.set()
    await until(lambda: destination._answer is None)
    assert socket.tried == ["tcp://127.0.0.1:7071"]
    destination.failed()
    timer = destination._timer
    destination.reached()  # before it is looked up
    assert timer is not None and timer.cancelled() and destination._timer is None
    destination.close()


async def test_a_look_up_that_fails_after_the_name_was_reached_is_no_error(server: NameServer) -> None:
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    destination = destination_of(Socket())
    destination.start()
    destination.reached()
    server.fails = True
    server.may_answer.set()
    await until(lambda: destination._answer is None)
    gc.collect()
    assert not errors
    destination.close()


async def test_what_is_sent_is_kept_until_the_name_is_reached_and_not_without_end(server: NameServer) -> None:
    socket = Socket()
    destination = destination_of(socket)
    destination.start()
    frames = [str(index).encode() for index in range(SEND_QUEUE_MESSAGES)]
    assert destination.keeps and all(map(destination.keep, frames)) and not destination.keep(b"too many")
    assert destination.reached() == frames and not destination.keeps
    destination.lost()
    assert destination.keeps and destination.keep(b"later")
    assert destination.close() == [] and not destination.keeps  # it has no address
    server.may_answer.set()
    await until(lambda: server.asked == 1)
    assert not socket.tried


async def test_where_no_thread_is_left_it_is_tried_again(server: NameServer) -> None:
    server.may_answer.set()
    socket = Socket()
    destination = destination_of(socket)
    with no_threads():
        destination.start()
    await until(lambda: socket.endpoint is not None)
    destination.close()
