"""GManagerActor: messages and time in, answers and log lines out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from distkv.actors.event_lines import BURST_LINES
from distkv.actors.gmanager.process import (
    MAX_MEMBER_BYTES,
    MAX_RECEIVED_BYTES,
    READ_FIRST_S,
    READ_FIRST_TURNS,
    GManagerActor,
    run,
)
from distkv.clock import ManualClock
from distkv.config import GManagerConfig
from distkv.control.cluster.silence import ATTENTIVE_STEP_S
from distkv.wire.channel import ClientChannel, ServerChannel
from distkv.wire.codec import MAX_MESSAGE_BYTES, encode_envelope
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.inboxes import CLIENT_CONNECTION, GMANAGER_CONNECTION, GMANAGER_PORT
from distkv.wire.messages import to_gmanager as tg
from distkv.wire.messages.common import PlanEpoch
from distkv.wire.messages.envelope import Envelope, ToGManager
from distkv.wire.messages.member_versions import PART_MEMBERS
from distkv.wire.messages.to_client import TokenChunk
from distkv.wire.messages.to_rmanager import JoinRefused, Members
from tests.control.parts import make_member
from tests.waiting import soon

MEMBER = msgspec.structs.replace(make_member("a"), address="tcp://127.0.0.1:9")
JOIN = tg.Join(member=MEMBER, compat="model")


class SpeakingActor(GManagerActor):
    """With a door to its state machine, to do damage behind its back."""

    def damage(self) -> None:
        self._core.ledger.promise("a", "r", -1)


@pytest.fixture
async def server() -> AsyncIterator[ServerChannel[ToGManager]]:
    async with ServerChannel.bind("tcp://127.0.0.1:0", GMANAGER_PORT, name="gmanager") as server:
        yield server


async def serve_one(actor: GManagerActor, client: ClientChannel[Any], body: Any, answer: type = Members) -> None:
    """Have the actor answer one message."""
    serving = asyncio.ensure_future(actor.serve())
    client.send(EnvelopeFactory("a").wrap(body))
    try:
        envelope = await soon(client.recv())
        assert isinstance(envelope.body, answer)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_messages_are_answered_and_events_logged_with_their_cause(server: ServerChannel[ToGManager]) -> None:
    actor = GManagerActor(GManagerConfig(validate_state=True), server, ManualClock(5.0))
    with capture_logs() as lines:
        async with ClientChannel.connect(server.address, CLIENT_CONNECTION) as client:
            await serve_one(actor, client, JOIN)
    assert [line["event"] for line in lines] == ["joined", "instance_state"]
    assert lines[0]["instance"] == "a" and lines[0]["blocks"] == 8 and lines[0]["cause"]
    assert lines[1]["state"] == "ready"


@pytest.mark.parametrize(
    "address", ["", "sim://a", "127.0.0.1:9", "tcp://127.0.0.1", "tcp://127.0.0.1:0", "tcp://a:99999", "tcp://a b:1"]
)
async def test_one_whose_address_is_none_does_not_join(server: ServerChannel[ToGManager], address: str) -> None:
    actor = GManagerActor(GManagerConfig(validate_state=True), server, ManualClock(5.0))
    join = tg.Join(member=msgspec.structs.replace(MEMBER, address=address), compat="model")
    with capture_logs() as lines:
        async with ClientChannel.connect(server.address, GMANAGER_CONNECTION) as client:
            await serve_one(actor, client, join, JoinRefused)
            await serve_one(actor, client, JOIN)
    assert [line["event"] for line in lines] == ["join_refused", "joined", "instance_state"]
    assert lines[0]["reason"] == f"{address!r} is no address such as tcp://127.0.0.1:7070"


async def test_time_alone_makes_an_instance_dead(server: ServerChannel[ToGManager]) -> None:
    clock = ManualClock(5.0)
    actor = GManagerActor(GManagerConfig(validate_state=True), server, clock)
    async with ClientChannel.connect(server.address, CLIENT_CONNECTION) as client:
        await serve_one(actor, client, JOIN)
        with capture_logs() as lines:
            for _ in range(int(GManagerConfig().membership.dead_after_s / ATTENTIVE_STEP_S)):
                clock.advance(ATTENTIVE_STEP_S)
                actor.tick()
    assert [(line["event"], line["state"], line["cause"]) for line in lines] == [("instance_state", "dead", "")]


class FullInbox:
    """A channel with messages that nobody has read yet, until `is_empty`."""

    is_empty = False
    taken, num_connections = 0, 2

    def has_waiting(self) -> bool:
        return not self.is_empty

    async def deliver(self, take: Callable[[bytes, Envelope[Any]], None], rest: Callable[[], None]) -> None:
        take(b"route", EnvelopeFactory("a").wrap(JOIN))

    def encoded(self, envelope: Envelope[Any]) -> Any:
        return envelope.body

    def send(self, route: bytes, envelope: Envelope[Any]) -> bool:
        return True

    def send_to_all(self, routes: Any, frame: Any) -> None:
        pass


async def serving_full_inbox() -> tuple[ManualClock, FullInbox, GManagerActor]:
    """A gManager that has taken one message of an inbox that stays full."""
    clock, inbox = ManualClock(5.0), FullInbox()
    server: Any = inbox
    actor = GManagerActor(GManagerConfig(validate_state=True), server, clock)
    await actor.serve()
    return clock, inbox, actor


class Restless(FullInbox):
    """One instance joins in one incarnation after the other."""

    async def deliver(self, take: Callable[[bytes, Envelope[Any]], None], rest: Callable[[], None]) -> None:
        for incarnation in range(1, 2 * BURST_LINES):
            member = msgspec.structs.replace(MEMBER, incarnation=incarnation)
            take(b"route", EnvelopeFactory("a").wrap(msgspec.structs.replace(JOIN, member=member)))


async def test_an_instance_that_comes_and_goes_fills_no_log() -> None:
    actor = GManagerActor(GManagerConfig(), Restless(), ManualClock(5.0))  # type: ignore[arg-type]
    with capture_logs() as lines:
        await actor.serve()
        actor.close()
    assert {kind: sum(line["event"] == kind for line in lines) for kind in ("joined", "instance_state")} == {
        "joined": BURST_LINES,
        "instance_state": BURST_LINES,
    }


async def test_silence_is_judged_only_when_nothing_waits_to_be_read() -> None:
    """A heartbeat may be among it."""
    clock, inbox, actor = await serving_full_inbox()
    with capture_logs() as lines:
        for _ in range(2 * int(GManagerConfig().membership.dead_after_s / ATTENTIVE_STEP_S)):
            clock.advance(ATTENTIVE_STEP_S)
            actor.tick()
        assert not lines
        inbox.is_empty = True
        for _ in range(2 * int(GManagerConfig().membership.dead_after_s / ATTENTIVE_STEP_S)):
            clock.advance(ATTENTIVE_STEP_S)
            actor.tick()
    assert [line["state"] for line in lines] == ["dead"]
    actor.close()


async def test_silence_is_judged_where_messages_come_without_an_end() -> None:
    """Once of everybody who had something to say something was read."""
    clock, inbox, actor = await serving_full_inbox()
    with capture_logs() as lines:
        for _ in range(int(2 * GManagerConfig().membership.dead_after_s / ATTENTIVE_STEP_S)):
            clock.advance(ATTENTIVE_STEP_S)
            inbox.taken = READ_FIRST_TURNS * inbox.num_connections - 1
            actor.tick()
        assert not lines
        for _ in range(int((2 * GManagerConfig().membership.dead_after_s + READ_FIRST_S) / ATTENTIVE_STEP_S)):
            clock.advance(ATTENTIVE_STEP_S)
            actor._take(b"stranger", EnvelopeFactory("b").wrap(tg.Locate(request_id="r")))
            inbox.taken += READ_FIRST_TURNS * inbox.num_connections
            actor.tick()
    assert "dead" in [line["state"] for line in lines]
    actor.close()


async def test_an_inbox_that_was_found_empty_begins_anew_to_be_read_first() -> None:
    """Else messages that come much later would be taken for read in turn already."""
    clock, inbox, actor = await serving_full_inbox()
    actor.tick()
    inbox.is_empty = True
    actor._rest()
    inbox.is_empty = False
    clock.advance(2 * READ_FIRST_S)
    inbox.taken = READ_FIRST_TURNS * inbox.num_connections
    assert not actor._has_read_of_all(), "it is counted from now on"
    actor.close()


@pytest.mark.parametrize("validates", [True, False])
async def test_a_contradiction_ends_it_with_validate_state(server: ServerChannel[ToGManager], validates: bool) -> None:
    actor = SpeakingActor(GManagerConfig(validate_state=validates), server, ManualClock(5.0))
    async with ClientChannel.connect(server.address, CLIENT_CONNECTION) as client:
        await serve_one(actor, client, JOIN)
    actor.damage()
    if validates:
        with pytest.raises(AssertionError, match="a promise below 0"):
            actor.tick()
    else:
        actor.tick()


async def test_it_serves_until_it_is_stopped() -> None:
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    running = asyncio.ensure_future(run(GManagerConfig(port=0), ready.set_result, stop))
    address = (await soon(ready))["address"]
    with capture_logs() as lines:
        async with ClientChannel.connect(address, CLIENT_CONNECTION) as client:
            client.send(EnvelopeFactory("x").wrap(tg.MembersQuery()))
            envelope = await soon(client.recv())
            assert isinstance(envelope.body, Members) and envelope.body.members == ()
        stop.set()
        assert await soon(running) == 0
    assert lines[-1]["event"] == "stopped"


async def test_it_takes_the_longest_heartbeat_and_not_much_more() -> None:
    """Whatever is in it, to decode it takes the loop no longer than that."""
    name = "x" * 256
    heartbeat = tg.Heartbeat(
        instance_id=name,
        incarnation=1,
        seq=1,
        base=0,
        full=True,
        entries=(tg.RequestPlacementEntry(name, name, 2**40, True),) * tg.MAX_REPORTED,
        debtors=(tg.Debtor(name, 2**40),) * tg.MAX_REPORTED,
        arrived=(name,) * tg.MAX_ARRIVED,
        dropped_moves=(tg.DroppedMove(PlanEpoch(1, 1), name),) * tg.MAX_DROPPED,
    )
    assert len(encode_envelope(EnvelopeFactory("a").wrap(heartbeat), MAX_RECEIVED_BYTES)) > MAX_RECEIVED_BYTES // 3
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    running = asyncio.ensure_future(run(GManagerConfig(port=0), ready.set_result, stop))
    address, lost = (await soon(ready))["address"], asyncio.Event()
    async with ClientChannel.connect(address, GMANAGER_CONNECTION, on_disconnected=lost.set) as client:
        client.send(EnvelopeFactory("a").wrap(heartbeat))
        client.send(EnvelopeFactory("a").wrap(tg.MembersQuery()))
        await soon(client.recv())
        assert not lost.is_set()
        client.send(EnvelopeFactory("a").wrap(TokenChunk(request_id="r", text="x" * MAX_RECEIVED_BYTES)))
        await soon(lost.wait())
    stop.set()
    assert await soon(running) == 0


async def test_an_entry_that_is_too_long_is_not_listed(server: ServerChannel[ToGManager]) -> None:
    """A part of the list must fit a message: one that does not would cut everybody off."""
    assert PART_MEMBERS * MAX_MEMBER_BYTES < MAX_MESSAGE_BYTES // 2
    assert MEMBER.data is not None
    long = {f"t{index}": {f"name{one}": "é" * 256 for one in range(16)} for index in range(2)}
    member = msgspec.structs.replace(MEMBER, data=msgspec.structs.replace(MEMBER.data, transports=long))
    actor = GManagerActor(GManagerConfig(), server, ManualClock(5.0))
    with capture_logs() as lines:
        async with ClientChannel.connect(server.address, GMANAGER_CONNECTION) as client:
            await serve_one(actor, client, tg.Join(member=member, compat="model"), JoinRefused)
    assert [line["event"] for line in lines] == ["join_refused"]
    assert f"more than {MAX_MEMBER_BYTES}" in lines[0]["reason"]
