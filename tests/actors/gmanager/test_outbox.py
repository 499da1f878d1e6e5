"""Outbox: one encoded message to many, a few at a time, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from structlog.testing import capture_logs

from distkv.actors.gmanager.outbox import MEMBERS_OF_A_ROUTE, ROUTES_AT_ONCE, Outbox
from distkv.control.commands import Broadcast
from distkv.wire.channel import ClientChannel, ServerChannel
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.inboxes import CLIENT_CONNECTION, GMANAGER_PORT
from distkv.wire.messages.member_versions import PART_MEMBERS
from distkv.wire.messages.to_gmanager import MembersQuery
from distkv.wire.messages.to_rmanager import Members
from tests.control.parts import make_member
from tests.waiting import soon, until


class Server:
    """Notes what is sent to whom."""

    def __init__(self) -> None:
        self.encoded_count = 0
        self.sent: list[tuple[bytes, Any]] = []
        self.turns: list[int] = []

    def encoded(self, envelope: Any) -> Any:
        self.encoded_count += 1
        return envelope.body

    def send_to_all(self, routes: Iterable[bytes], frame: Any) -> None:
        before = len(self.sent)
        self.sent += [(route, frame) for route in routes]
        self.turns.append(len(self.sent) - before)


@pytest.mark.parametrize("count", [1, ROUTES_AT_ONCE, 10_000])
async def test_many_copies_are_encoded_once_and_leave_the_loop_free(count: int) -> None:
    server: Any = Server()
    outbox = Outbox(server, EnvelopeFactory("gmanager"))
    routes = tuple(b"%d" % index for index in range(count))
    first, second = Members(version=1), Members(version=2)
    outbox.put(Broadcast(routes, first), "")
    outbox.put(Broadcast((b"0",), second), "")
    others = 0
    while len(server.sent) <= count:
        await asyncio.sleep(0)
        others += 1
    assert server.encoded_count == 2
    assert server.sent == [(route, first) for route in routes] + [(b"0", second)], "in order"
    assert max(server.turns) <= ROUTES_AT_ONCE and others >= count // ROUTES_AT_ONCE
    outbox.put(Broadcast(routes * 2, first), "")
    outbox.close()
    await asyncio.sleep(0)
    assert len(server.sent) <= count + 1 + ROUTES_AT_ONCE


async def test_a_long_list_is_encoded_a_few_parts_in_a_turn() -> None:
    """The whole list of 10,000 takes six milliseconds to encode, also for one who asks."""
    server: Any = Server()
    outbox = Outbox(server, EnvelopeFactory("gmanager"))
    parts = [Members(version=number, members=(make_member("a"),) * PART_MEMBERS) for number in range(1, 41)]
    for part in parts:
        outbox.put(Broadcast((b"0", b"1"), part), "")
    encoded_before = most = server.encoded_count
    while len(server.sent) < 2 * len(parts):
        most = max(most, server.encoded_count - encoded_before)
        encoded_before = server.encoded_count
        await asyncio.sleep(0)
    assert most <= ROUTES_AT_ONCE * MEMBERS_OF_A_ROUTE // PART_MEMBERS
    assert server.sent == [(route, part) for part in parts for route in (b"0", b"1")]


async def test_every_route_gets_the_bytes_and_one_that_is_gone_holds_nobody_up() -> None:
    async with (
        ServerChannel.bind("tcp://127.0.0.1:0", GMANAGER_PORT) as server,
        ClientChannel.connect(server.address, CLIENT_CONNECTION) as one,
        ClientChannel.connect(server.address, CLIENT_CONNECTION) as other,
    ):
        routes = []
        for client in (one, other):
            client.send(EnvelopeFactory("x").wrap(MembersQuery()))
            route, _ = await soon(server.recv())
            routes.append(route)
        assert not server.has_waiting()
        outbox = Outbox(server, EnvelopeFactory("gmanager"))
        outbox.put(Broadcast((b"nobody", *routes), Members(version=7)), "cause")
        for client in (one, other):
            envelope = await soon(client.recv())
            assert (envelope.body, envelope.cause) == (Members(version=7), "cause")


async def test_one_that_is_too_long_to_send_is_left_out() -> None:
    async with (
        ServerChannel.bind("tcp://127.0.0.1:0", GMANAGER_PORT, max_message_bytes=1000) as server,
        ClientChannel.connect(server.address, CLIENT_CONNECTION) as client,
    ):
        client.send(EnvelopeFactory("x").wrap(MembersQuery()))
        route, _ = await soon(server.recv())
        outbox = Outbox(server, EnvelopeFactory("gmanager"))
        with capture_logs() as lines:
            outbox.put(Broadcast((route,), Members(version=1, gone=("x" * 1000,))), "")
        assert [(line["event"], line["kind"]) for line in lines] == [("a message cannot be sent", "Members")]
        outbox.put(Broadcast((route,), Members(version=2)), "")
        assert (await soon(client.recv())).body == Members(version=2)


async def test_a_message_that_waits_is_seen_and_still_received() -> None:
    async with (
        ServerChannel.bind("tcp://127.0.0.1:0", GMANAGER_PORT) as server,
        ClientChannel.connect(server.address, CLIENT_CONNECTION) as client,
    ):
        for _ in range(2):
            client.send(EnvelopeFactory("x").wrap(MembersQuery()))
        await soon(server.recv())
        await until(server.has_waiting)
        await soon(server.recv())
        assert not server.has_waiting()
    assert not server.has_waiting()
