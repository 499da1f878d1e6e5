"""What is known of a connection whose socket goes on to another endpoint, of which ZeroMQ tells nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import closing

import pytest
import zmq

from distkv.wire.sockets.connection_watch import ConnectionWatch
from distkv.wire.sockets.loop_socket import LoopSocket
from distkv.wire.sockets.options import open_socket, shared_context
from tests.waiting import DEADLINE_S, until


class Client:
    """told: of its connection."""

    def __init__(self) -> None:
        self.told: list[str] = []
        own = open_socket(zmq.DEALER, ipv6=False)
        self.socket = LoopSocket(own, "a client")
        self.watch = ConnectionWatch(own, "a client", *(self._tell(what) for what in ("up", "down", "failed")))

    def _tell(self, what: str) -> Callable[[], None]:
        return lambda: self.told.append(what)

    def close(self) -> None:
        self.watch.close()
        self.socket.close(0)


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    with closing(Client()) as client:
        yield client


def endpoint_of(listener: socket.socket) -> str:
    return f"tcp://127.0.0.1:{listener.getsockname()[1]}"


async def test_one_that_is_left_for_another_endpoint_does_not_go_on_for_what_has_not_left(client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client.socket.connect(endpoint_of(listener))
        assert client.socket.send((b"never leaves",))
        connection, _ = listener.accept()
        await until(lambda: len(client.watch.descriptors) == 1)
        client.socket.disconnect(endpoint_of(listener))
        with connection:
            connection.settimeout(DEADLINE_S)
            while await asyncio.to_thread(connection.recv, 4096):
                pass
        await asyncio.sleep(0)
        assert client.told == []


async def test_one_that_was_reached_when_it_was_left_is_lost_where_the_next_cannot_be_reached(client: Client) -> None:
    server = shared_context().socket(zmq.ROUTER)
    with closing(server), socket.socket() as refuses:
        server.set(zmq.RCVTIMEO, round(DEADLINE_S * 1000))
        reached = f"tcp://127.0.0.1:{server.bind_to_random_port('tcp://127.0.0.1')}"
        refuses.bind(("127.0.0.1", 0))
        client.socket.connect(reached)
        client.socket.send((b"it is reached",))
        server.recv_multipart()
        client.socket.disconnect(reached)
        client.socket.connect(endpoint_of(refuses))
        await until(lambda: "failed" in client.told)
        assert client.told == ["up", "down", "failed"]
        assert not client.watch.connected and not client.watch.descriptors
