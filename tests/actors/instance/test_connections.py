"""An rManager's own connections: who is heard is whom it called, what may not come by them is counted and dropped."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import zmq
from structlog.testing import capture_logs

from distkv.actors.instance import connections
from distkv.actors.instance.connections import PEER_RETRY_S, GManagerConnections, PeerConnections
from distkv.wire.channel import ServerChannel
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.inboxes import GMANAGER_PORT, RMANAGER_PORT
from distkv.wire.messages import from_worker as fw
from distkv.wire.messages import to_client as tc
from distkv.wire.messages import to_gmanager as tg
from distkv.wire.messages import to_rmanager as tr
from distkv.wire.messages.common import Epoch, Member, SpanRef
from tests.control.parts import make_member
from tests.waiting import soon

SPAN = SpanRef(span_id="s", epoch=Epoch(1, 1))
ENVELOPES = EnvelopeFactory("a")
RELEASE = tr.Release(span=SPAN)


def peer_at(address: str, name: str = "b") -> Member:
    return Member(instance_id=name, incarnation=1, address=address, state="ready")


@pytest.mark.parametrize(
    "forged",
    [fw.Revoked(span=SPAN), tr.Members(version=9), tr.Release(span=SPAN)],
    ids=lambda body: type(body).__name__,
)
async def test_a_peer_is_heard_by_the_name_it_was_called_and_only_with_answers(
    tasks: asyncio.TaskGroup, forged: Any
) -> None:
    heard: asyncio.Queue[Any] = asyncio.Queue()
    peers = PeerConnections(ENVELOPES, tasks, lambda *message: heard.put_nowait(message), lambda _name: None)
    async with ServerChannel.bind("tcp://127.0.0.1:0", RMANAGER_PORT) as server:
        assert peers.send(peer_at(server.address), RELEASE, "why")
        route, envelope = await soon(server.recv())
        assert (envelope.body, envelope.cause) == (RELEASE, "why")
        liar = EnvelopeFactory("gmanager")
        with capture_logs() as lines:
            server.send(route, liar.wrap(forged))
            answer = liar.wrap(tr.Released(span=SPAN))
            server.send(route, answer)
            assert await soon(heard.get()) == ("b", tr.Released(span=SPAN), answer.id)
        assert [line["event"] for line in lines] == ["an answer was refused"]
        assert peers.malformed == 1 and heard.empty()
        peers.keep_only({})
        assert peers.malformed == 1, "what a closed connection refused still counts"


async def test_a_peer_at_a_new_address_is_called_there_by_another_route(tasks: asyncio.TaskGroup) -> None:
    lost: list[str] = []
    peers = PeerConnections(ENVELOPES, tasks, lambda *_message: None, lost.append)
    async with (
        ServerChannel.bind("tcp://127.0.0.1:0", RMANAGER_PORT) as before,
        ServerChannel.bind("tcp://127.0.0.1:0", RMANAGER_PORT) as after,
    ):
        peers.send(peer_at(before.address), RELEASE, "")
        old_route, _ = await soon(before.recv())
        peers.send(peer_at(after.address), RELEASE, "")
        new_route, _ = await soon(after.recv())
        assert old_route != new_route and lost == []
        peers.close()


@pytest.mark.parametrize("address", ["nonsense", "tcp://a b:1", ""])
async def test_a_peer_whose_address_is_none_is_lost(tasks: asyncio.TaskGroup, address: str) -> None:
    lost: asyncio.Queue[str] = asyncio.Queue()
    peers = PeerConnections(ENVELOPES, tasks, lambda *_message: None, lost.put_nowait)
    async with ServerChannel.bind("tcp://127.0.0.1:0", RMANAGER_PORT) as server:
        with capture_logs() as lines:
            for _ in range(2):
                assert not peers.send(peer_at(address), RELEASE, "")
                assert lost.empty(), "whoever sends is not interrupted"
                assert await soon(lost.get()) == "b"
        assert [(line["event"], line["peer"]) for line in lines] == [("a peer has no address", "b")]
        peers.keep_only({"b": peer_at(address)})
        assert peers.send(peer_at(server.address), RELEASE, "")
        await soon(server.recv())
        peers.close()


async def test_a_gmanager_that_refuses_to_read_this_instance_is_named_in_the_log(tasks: asyncio.TaskGroup) -> None:
    connected, heard = asyncio.Event(), asyncio.Event()
    async with ServerChannel.bind("tcp://127.0.0.1:0", GMANAGER_PORT) as server:
        gmanagers = GManagerConnections((server.address,), ENVELOPES, tasks)
        gmanagers.on_connected, gmanagers.on_message = connected.set, lambda _message, _cause: heard.set()
        gmanagers.send_to_all(tg.MembersQuery())  # nobody is there yet, and nobody waits
        await soon(connected.wait())
        assert gmanagers.send(tg.Join(member=make_member("a"), compat="x"), "")
        route, envelope = await soon(server.recv())
        assert isinstance(envelope.body, tg.Join)
        with capture_logs() as lines:
            server.send(route, ENVELOPES.wrap(tc.Rejected(reason="of another protocol")))
            server.send(route, ENVELOPES.wrap(tr.HeartbeatAck(seq=1)))
            await soon(heard.wait())
        assert [(line["event"], line["reason"]) for line in lines] == [
            ("this instance was refused", "of another protocol")
        ]
        assert gmanagers.malformed == 0
        gmanagers.close()


async def test_nothing_goes_to_a_peer_known_dead_and_no_connection_to_it_stays(tasks: asyncio.TaskGroup) -> None:
    peers = PeerConnections(ENVELOPES, tasks, lambda *_message: None, lambda _name: None)
    async with ServerChannel.bind("tcp://127.0.0.1:0", RMANAGER_PORT) as server:
        member = peer_at(server.address)
        dead = msgspec.structs.replace(member, state="dead")
        assert not peers.send(dead, RELEASE, "")
        assert peers._connections == {}
        assert peers.send(member, RELEASE, "")
        await soon(server.recv())
        peers.keep_only({"b": dead})
        assert peers._connections == {}
        assert not peers.send(dead, RELEASE, "")
        assert peers._connections == {}


async def test_a_peer_that_was_restarted_is_called_anew(tasks: asyncio.TaskGroup) -> None:
    peers = PeerConnections(ENVELOPES, tasks, lambda *_message: None, lambda _name: None)
    async with ServerChannel.bind("tcp://127.0.0.1:0", RMANAGER_PORT) as server:
        routes = []
        for incarnation in (1, 1, 2):
            peers.send(msgspec.structs.replace(peer_at(server.address), incarnation=incarnation), RELEASE, "")
            routes.append((await soon(server.recv()))[0])
        assert routes[0] == routes[1] != routes[2]
        peers.close()


async def test_attempts_to_reach_a_peer_that_is_gone_become_rare(tasks: asyncio.TaskGroup) -> None:
    """They double, up to seconds; whoever asks for more does not get them."""
    peers = PeerConnections(ENVELOPES, tasks, lambda *_message: None, lambda _name: None)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for _ in range(100):
        peers.send(peer_at(f"tcp://127.0.0.1:{port}"), RELEASE, "")
    (connection,) = peers._connections.values()
    zmq_socket = connection._channel._socket._socket
    assert zmq_socket.get(zmq.RECONNECT_IVL_MAX) == PEER_RETRY_S * 1000
    peers.close()


async def test_a_message_that_is_too_long_costs_nothing_but_itself(tasks: asyncio.TaskGroup) -> None:
    peers = PeerConnections(ENVELOPES, tasks, lambda *_message: None, lambda _name: None)
    async with ServerChannel.bind("tcp://127.0.0.1:0", RMANAGER_PORT) as server:
        overlong = tr.Renew(renewal=1, spans=(SpanRef(span_id="s" * 256, epoch=Epoch(1, 1)),) * 70_000, ttl_s=1.0)
        with capture_logs() as lines:
            assert not peers.send(peer_at(server.address), overlong, "")
            assert not peers.send(peer_at(server.address), overlong, "")
        assert [(line["event"], line["kind"]) for line in lines] == [("a message cannot be sent", "Renew")]
        assert peers.send(peer_at(server.address), RELEASE, "")
        assert (await soon(server.recv()))[1].body == RELEASE
        peers.close()


@asynccontextmanager
async def to_two_gmanagers(
    tasks: asyncio.TaskGroup,
) -> AsyncIterator[tuple[GManagerConnections, ServerChannel[Any], ServerChannel[Any]]]:
    async with (
        ServerChannel.bind("tcp://127.0.0.1:0", GMANAGER_PORT) as first,
        ServerChannel.bind("tcp://127.0.0.1:0", GMANAGER_PORT) as second,
    ):
        gmanagers = GManagerConnections((first.address, second.address), ENVELOPES, tasks)
        for connection in gmanagers._connections:
            await soon(connection._channel.wait_connected())
        yield gmanagers, first, second
        gmanagers.close()


async def test_a_gmanager_that_does_not_answer_is_left_for_one_that_does(
    tasks: asyncio.TaskGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped or stuck: its host keeps the connection up."""
    monkeypatch.setattr(connections, "SILENT_S", 0.5)
    heard: asyncio.Queue[Any] = asyncio.Queue()
    query = tg.MembersQuery()
    async with to_two_gmanagers(tasks) as (gmanagers, first, second):
        gmanagers.on_message = lambda message, _cause: heard.put_nowait(message)
        gmanagers.send(query, "")
        route, _ = await soon(first.recv())
        await asyncio.sleep(connections.SILENT_S)
        gmanagers.send(query, "")
        other_route, _ = await soon(second.recv())
        second.send(other_route, ENVELOPES.wrap(tr.HeartbeatAck(seq=7)))
        assert await soon(heard.get()) == tr.HeartbeatAck(seq=7)
        first.send(route, ENVELOPES.wrap(tr.HeartbeatAck(seq=1)))
        assert await soon(heard.get()) == tr.HeartbeatAck(seq=1)
        gmanagers.send(query, "")
        await soon(first.recv())
        # The other stands by again: what it says of others is not believed.
        second.send(other_route, ENVELOPES.wrap(tr.Members(version=1)))
        second.send(other_route, ENVELOPES.wrap(tr.JoinRefused(reason="no")))
        assert await soon(heard.get()) == tr.JoinRefused(reason="no")


async def test_every_gmanager_hears_who_joins(tasks: asyncio.TaskGroup) -> None:
    """Else one knows an instance as it was while it loaded, without memory to lend, and goes by that when needed."""
    async with to_two_gmanagers(tasks) as (gmanagers, first, second):
        join = tg.Join(member=peer_at("tcp://127.0.0.1:1"), compat="model")
        gmanagers.send(join, "")
        assert (await soon(first.recv()))[1].body == join == (await soon(second.recv()))[1].body


async def test_a_gmanager_that_stands_by_hears_who_lives_and_nothing_to_plan_by(tasks: asyncio.TaskGroup) -> None:
    async with to_two_gmanagers(tasks) as (gmanagers, first, second):
        placed = tg.RequestPlacementEntry(req_id="r", inst_id="a", num_blocks=2, local=True)
        heartbeat = tg.Heartbeat(
            instance_id="a", incarnation=1, seq=7, base=6, full=False, entries=(placed,), free_blocks=5
        )
        gmanagers.send(heartbeat, "")
        assert (await soon(first.recv()))[1].body == heartbeat
        other = (await soon(second.recv()))[1].body
        assert other == tg.Heartbeat(instance_id="a", incarnation=1, seq=7, base=7, full=False, free_blocks=5)


async def test_a_connection_that_refuses_much_writes_little(tasks: asyncio.TaskGroup) -> None:
    heard = asyncio.Event()
    peers = PeerConnections(ENVELOPES, tasks, lambda *_message: heard.set(), lambda _name: None)
    async with ServerChannel.bind("tcp://127.0.0.1:0", RMANAGER_PORT) as server:
        peers.send(peer_at(server.address), RELEASE, "")
        route, _ = await soon(server.recv())
        with capture_logs() as lines:
            for _ in range(50):
                server.send(route, ENVELOPES.wrap(tr.Members(version=1)))
                server.send(route, ENVELOPES.wrap(tc.Rejected(reason="no")))
            server.send(route, ENVELOPES.wrap(tr.Released(span=SPAN)))
            await soon(heard.wait())
        assert len(lines) == 1 and peers.malformed == 50
        peers.close()
