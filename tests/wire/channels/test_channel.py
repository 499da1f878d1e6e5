"""Control-plane channels over real sockets: order, back-pressure, addresses, and peers that vanish."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from distkv.errors import ConfigError, LinkClosed
from distkv.wire.channel import ClientChannel, ServerChannel
from distkv.wire.codec import encode_envelope
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.inboxes import CAPTURE
from distkv.wire.messages.envelope import Control, Envelope
from distkv.wire.messages.to_client import TokenChunk
from distkv.wire.messages.to_gmanager import MembersQuery
from distkv.wire.messages.to_rmanager import Cancel, KeepAlive
from distkv.wire.sockets import listening
from distkv.wire.sockets.options import CUT_OFF_S, open_socket
from tests.waiting import DEADLINE_S, soon, until
from tests.wire.channels.strangers import stranger_at


async def test_ask_and_answer(
    server: ServerChannel[Control], client: ClientChannel[Control], envelopes: EnvelopeFactory
) -> None:
    question = envelopes.wrap(MembersQuery())
    assert client.send(question)
    route, got = await soon(server.recv())
    assert got == question
    assert server.send(route, Envelope(id="b-1", sender="b", body=KeepAlive(), cause=got.id))
    answer = await soon(client.recv())
    assert (answer.sender, answer.cause) == ("b", question.id)


async def test_many_in_order_and_both_ways(
    server: ServerChannel[Control], client: ClientChannel[Control], envelopes: EnvelopeFactory
) -> None:
    count = 3000

    async def echo() -> None:
        for _ in range(count):
            route, got = await server.recv()
            assert server.send(route, got)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(echo())
        for i in range(count):
            assert client.send(envelopes.wrap(Cancel(request_id=str(i + 1))))
        for i in range(count):
            assert (await soon(client.recv())).body == Cancel(request_id=str(i + 1))


async def test_what_is_sent_before_the_server_is_there_arrives(envelopes: EnvelopeFactory) -> None:
    with socket.create_server(("127.0.0.1", 0)) as placeholder:
        address = f"tcp://127.0.0.1:{placeholder.getsockname()[1]}"
    async with ClientChannel.connect(address, CAPTURE) as client:
        assert client.send(envelopes.wrap(KeepAlive()))
        async with bind_again(address) as server:
            assert (await soon(server.recv()))[1].body == KeepAlive()


@contextlib.asynccontextmanager
async def bind_again(address: str) -> AsyncIterator[ServerChannel[Control]]:
    """Bind an address that was just given up; the port is free once ZeroMQ's thread has closed it."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            server = ServerChannel.bind(address, CAPTURE)
            break
        except ConfigError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0)
    async with server:
        yield server


async def test_send_says_when_the_peer_is_gone(server: ServerChannel[Control], envelopes: EnvelopeFactory) -> None:
    client = ClientChannel.connect(server.address, CAPTURE)
    client.send(envelopes.wrap(KeepAlive()))
    route, _envelope = await soon(server.recv())
    client.abort()
    await until(lambda: not server.send(route, envelopes.wrap(KeepAlive())))
    assert not server.send(b"never seen", envelopes.wrap(KeepAlive()))


async def test_send_says_when_the_peer_does_not_read(
    server: ServerChannel[Control], envelopes: EnvelopeFactory
) -> None:
    with stranger_at(server.address) as slow:
        slow.send(encode_envelope(envelopes.wrap(KeepAlive())))
        route, _envelope = await soon(server.recv())
        big = envelopes.wrap(TokenChunk(request_id="r", text="x" * 50_000))
        for _ in range(100_000):
            if not server.send(route, big):
                break
        else:
            pytest.fail("an unread queue grew without bound")


async def test_a_route_is_a_secret_between_a_client_and_its_server(envelopes: EnvelopeFactory) -> None:
    """So nobody else can take it over, and its owner can when it has to reconnect."""
    routes = []
    async with ServerChannel.bind("tcp://127.0.0.1:0", CAPTURE) as placeholder:
        address = placeholder.address
        async with ClientChannel.connect(address, CAPTURE) as other:
            other.send(envelopes.wrap(KeepAlive()))
            routes.append((await soon(placeholder.recv()))[0])
        gone = asyncio.Event()
        client = ClientChannel.connect(address, CAPTURE, on_disconnected=gone.set)
        client.send(envelopes.wrap(KeepAlive()))
        routes.append((await soon(placeholder.recv()))[0])
    async with client, bind_again(address) as server:
        await soon(gone.wait())
        client.send(envelopes.wrap(KeepAlive()))
        routes.append((await soon(server.recv()))[0])
    assert routes[0] != routes[1] == routes[2]
    assert all(len(route) >= 16 and route[0] != 0 for route in routes)


async def test_cancelling_recv_loses_nothing(
    server: ServerChannel[Control], client: ClientChannel[Control], envelopes: EnvelopeFactory
) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(server.recv(), 0.01)
    client.send(envelopes.wrap(KeepAlive()))
    assert (await soon(server.recv()))[1].body == KeepAlive()


async def test_closing_wakes_those_who_wait() -> None:
    client = ClientChannel.connect("tcp://127.0.0.1:1", CAPTURE)  # where nobody listens
    waiting = [asyncio.ensure_future(wait()) for wait in (client.recv, client.wait_connected)]
    await asyncio.sleep(0)
    client.close()
    client.close()
    for task in waiting:
        with pytest.raises(LinkClosed, match="closed on this side"):
            await soon(task)
    assert not client.send(EnvelopeFactory("a").wrap(KeepAlive()))
    with pytest.raises(LinkClosed):
        await client.recv()


SERVER = """
import asyncio, sys
from distkv.wire.channel import ServerChannel
from distkv.wire.inboxes import CAPTURE
async def main():
    async with ServerChannel.bind(sys.argv[1], CAPTURE) as server:
        print(server.address, flush=True)
        while True:
            route, envelope = await server.recv()
            server.send(route, envelope)
asyncio.run(main())
"""


@contextlib.contextmanager
def server_process(address: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-c", SERVER, address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


async def test_a_killed_server_is_noticed_at_once_and_met_again(envelopes: EnvelopeFactory) -> None:
    told: asyncio.Queue[str] = asyncio.Queue()
    with server_process("tcp://127.0.0.1:0") as (process, address):
        client = ClientChannel.connect(
            address,
            CAPTURE,
            on_connected=lambda: told.put_nowait("up"),
            on_disconnected=lambda: told.put_nowait("down"),
        )
        await soon(client.wait_connected())
        assert client.connected
        client.send(envelopes.wrap(KeepAlive()))
        await soon(client.recv())
        killed = time.monotonic()
        process.kill()
        assert [await soon(told.get()), await soon(told.get())] == ["up", "down"]
        noticed_s = time.monotonic() - killed
        assert not client.connected
    with server_process(address):
        await soon(client.wait_connected())
        client.send(envelopes.wrap(MembersQuery()))
        assert (await soon(client.recv())).body == MembersQuery()
    assert [await soon(told.get()), await soon(told.get())] == ["up", "down"]
    client.close()
    # Usually a few milliseconds; the rest is patience with a busy machine. A server that says nothing takes longer.
    assert noticed_s < CUT_OFF_S / 2


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:0", "tcp://127.0.0.1", "tcp://:5", "tcp://127.0.0.1:99999", "tcp://no.such.host:1", "x://a:1"],
)
async def test_addresses_that_cannot_be_bound(address: str) -> None:
    with pytest.raises(ConfigError, match="address"):
        ServerChannel.bind(address, CAPTURE, insecure=True)


async def test_a_name_that_is_not_known_is_said() -> None:
    with pytest.raises(ConfigError, match=r"no address of this machine is called no\.such\.host"):
        ServerChannel.bind("tcp://no.such.host:1", CAPTURE, insecure=True)


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:0", "tcp://*:0", "tcp://[::]:0", "tcp://192.0.2.1:0"])
async def test_beyond_loopback_needs_insecure(address: str) -> None:
    with pytest.raises(ConfigError, match="--insecure"):
        ServerChannel.bind(address, CAPTURE)


async def test_insecure_binds_everywhere(envelopes: EnvelopeFactory) -> None:
    async with ServerChannel.bind("tcp://*:*", CAPTURE, insecure=True) as server:
        port = server.address.rsplit(":", 1)[1]
        async with ClientChannel.connect(f"tcp://localhost:{port}", CAPTURE) as client:
            client.send(envelopes.wrap(KeepAlive()))
            _route, envelope = await soon(server.recv())
            assert envelope.body == KeepAlive()


async def test_ipv6(envelopes: EnvelopeFactory) -> None:
    async with (
        ServerChannel.bind("tcp://[::1]:0", CAPTURE) as server,
        ClientChannel.connect(server.address, CAPTURE) as client,
    ):
        assert server.address.startswith("tcp://[::1]:")
        client.send(envelopes.wrap(KeepAlive()))
        await soon(server.recv())


@pytest.mark.parametrize("needs", [True, False])
async def test_a_name_is_listened_at_by_the_addresses_that_it_has(needs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[bool] = []

    def note(kind: int, ipv6: bool) -> Any:
        opened.append(ipv6)
        return open_socket(kind, ipv6)

    monkeypatch.setattr(listening, "needs_ipv6", lambda host: needs)
    monkeypatch.setattr(listening, "open_socket", note)
    with pytest.raises(ConfigError):
        ServerChannel.bind("tcp://no.such.host:0", CAPTURE, insecure=True)
    assert opened == [needs]


async def test_a_taken_port_is_named(server: ServerChannel[Control]) -> None:
    with pytest.raises(ConfigError, match=r"cannot listen at tcp://127\.0\.0\.1:\d+: Address already in use") as taken:
        ServerChannel.bind(server.address, CAPTURE)
    assert taken.value.hint == "port 0 takes a free one"


async def test_where_no_port_can_be_had_none_is_recommended() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen at tcp://203\.0\.113\.1:0: Cannot assign") as foreign:
        ServerChannel.bind("tcp://203.0.113.1:0", CAPTURE, insecure=True)
    assert foreign.value.hint == ""


async def test_connecting_to_what_is_no_address() -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        ClientChannel.connect("nonsense", CAPTURE)


def test_ids_are_unique() -> None:
    bodies: list[Control] = [KeepAlive()] * 3
    one, other = EnvelopeFactory("a"), EnvelopeFactory("a")
    ids = [envelopes.wrap(body).id for envelopes in (one, other) for body in bodies]
    assert len(set(ids)) == 6
    assert one.wrap(KeepAlive(), cause="x-1").cause == "x-1"
