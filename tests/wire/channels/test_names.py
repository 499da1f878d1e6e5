"""Clients of servers that are known by name: looked up while others are served, and again where the name moves."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator

import pytest

from distkv.errors import ConfigError
from distkv.wire.channel import ClientChannel, ServerChannel
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.inboxes import CAPTURE
from distkv.wire.messages.envelope import Control
from distkv.wire.messages.to_rmanager import Cancel, KeepAlive
from tests.waiting import soon, until
from tests.wire.name_server import NAME, NameServer, name_server


@pytest.fixture
def names() -> Iterator[NameServer]:
    with name_server() as names:
        yield names


def port_of(server: ServerChannel[Control]) -> int:
    return int(server.address.rpartition(":")[2])


@contextlib.asynccontextmanager
async def echoing(address: str) -> AsyncIterator[tuple[ServerChannel[Control], list[Control]]]:
    """A server that answers what it gets, and all that it got."""
    got: list[Control] = []

    async def echo(server: ServerChannel[Control]) -> None:
        while True:
            route, envelope = await server.recv()
            got.append(envelope.body)
            server.send(route, envelope)

    async with ServerChannel.bind(address, CAPTURE) as server:
        task = asyncio.ensure_future(echo(server))
        try:
            yield server, got
        finally:
            task.cancel()


async def test_others_are_served_while_a_name_is_looked_up(names: NameServer, envelopes: EnvelopeFactory) -> None:
    async with (
        echoing("tcp://127.0.0.1:0") as (server, _),
        ClientChannel.connect(f"tcp://{NAME}:{port_of(server)}", CAPTURE) as named,
        ClientChannel.connect(server.address, CAPTURE) as other,
    ):
        assert named.send(envelopes.wrap(Cancel(request_id="waits")))
        other.send(envelopes.wrap(KeepAlive()))
        assert (await soon(other.recv())).body == KeepAlive()
        assert names.asked == 1 and not named.connected
        names.may_answer.set()
        assert (await soon(named.recv())).body == Cancel(request_id="waits")


async def test_a_name_that_moves_is_followed_and_nothing_that_was_sent_meanwhile_is_lost(
    names: NameServer, envelopes: EnvelopeFactory
) -> None:
    names.may_answer.set()
    names.addresses = ("127.0.0.2",)
    told: list[str] = []
    async with contextlib.AsyncExitStack() as first:
        server, _ = await first.enter_async_context(echoing("tcp://127.0.0.2:0"))
        port = port_of(server)
        client = ClientChannel.connect(
            f"tcp://{NAME}:{port}",
            CAPTURE,
            on_connected=lambda: told.append("up"),
            on_disconnected=lambda: told.append("down"),
        )
        await soon(client.wait_connected())
    await until(lambda: told == ["up", "down"])
    sent: list[Control] = [Cancel(request_id=str(i)) for i in range(1, 100)]
    assert all([client.send(envelopes.wrap(body)) for body in sent])
    names.addresses = "127.0.0.3", "127.0.0.2"
    async with echoing(f"tcp://127.0.0.3:{port}") as (_, got):
        assert [(await soon(client.recv())).body for _ in sent] == sent == got
    assert told[:3] == ["up", "down", "up"]
    client.close()


async def test_what_a_server_says_at_last_is_read_though_its_name_moves(
    names: NameServer, envelopes: EnvelopeFactory
) -> None:
    names.may_answer.set()
    async with contextlib.AsyncExitStack() as first:
        server = await first.enter_async_context(ServerChannel.bind("tcp://127.0.0.1:0", CAPTURE))
        client = ClientChannel.connect(f"tcp://{NAME}:{port_of(server)}", CAPTURE)
        await soon(client.wait_connected())
        client.send(envelopes.wrap(KeepAlive()))
        route, _ = await soon(server.recv())
        for index in range(1, 100):
            server.send(route, envelopes.wrap(Cancel(request_id=str(index))))
    names.addresses = ("127.0.0.3",)
    async with ServerChannel.bind(f"tcp://127.0.0.3:{port_of(server)}", CAPTURE):
        await until(lambda: not client.connected)
        asked = names.asked
        await until(lambda: names.asked > asked + 1)
        said = [(await soon(client.recv())).body for _ in range(1, 100)]
        assert said == [Cancel(request_id=str(index)) for index in range(1, 100)]
        await soon(client.wait_connected())
    client.abort()


async def test_a_name_that_has_ipv6_only_is_reached(names: NameServer, envelopes: EnvelopeFactory) -> None:
    names.may_answer.set()
    names.addresses = ("::1",)
    async with (
        echoing("tcp://[::1]:0") as (server, _),
        ClientChannel.connect(f"tcp://{NAME}:{port_of(server)}", CAPTURE) as client,
    ):
        client.send(envelopes.wrap(KeepAlive()))
        assert (await soon(client.recv())).body == KeepAlive()


async def test_what_was_sent_before_the_end_leaves_where_there_is_an_address(
    names: NameServer, envelopes: EnvelopeFactory
) -> None:
    names.may_answer.set()
    async with ServerChannel.bind("tcp://127.0.0.1:0", CAPTURE) as server:
        client = ClientChannel.connect(f"tcp://{NAME}:{port_of(server)}", CAPTURE)
        client.send(envelopes.wrap(KeepAlive()))
        await until(lambda: client._destination._address is not None)
        client.close()
        assert not client.send(envelopes.wrap(KeepAlive()))
        assert (await soon(server.recv()))[1].body == KeepAlive()


async def test_one_that_is_closed_while_a_name_is_looked_up_leaves_nothing(
    names: NameServer, envelopes: EnvelopeFactory
) -> None:
    client = ClientChannel.connect(f"tcp://{NAME}:7071", CAPTURE)
    client.send(envelopes.wrap(KeepAlive()))
    client.close()
    names.may_answer.set()
    await asyncio.sleep(0)
    assert client._destination._address is None and client._destination._timer is None


@pytest.mark.parametrize("host", ["*", "a b", "a/b", "user@a", "eth0;127.0.0.1", "a\0b"])
async def test_what_cannot_be_a_name_is_not_looked_up_for_ever(names: NameServer, host: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(repr(host))):
        ClientChannel.connect(f"tcp://{host}:7071", CAPTURE)
    assert not names.asked
