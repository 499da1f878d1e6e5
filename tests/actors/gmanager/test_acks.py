"""Acknowledgements that wait for a moment: in order, none before its time, none after the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from distkv.actors.gmanager.acks import MOST_TOGETHER, Acks
from distkv.actors.gmanager.process import GManagerActor
from distkv.clock import ManualClock
from distkv.config import GManagerConfig
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.messages import to_gmanager as tg
from distkv.wire.messages.common import Member
from distkv.wire.messages.envelope import Envelope, ToGManager
from distkv.wire.messages.to_rmanager import HeartbeatAck
from tests.control.parts import make_member

DEADLINE_S = 30.0
ROUTE, OTHER = b"route", b"other"


class Server:
    """Hands out what it was given, then nothing; notes what is sent."""

    def __init__(self, *bodies: ToGManager) -> None:
        self.inbox = [Envelope(id=f"{number}", sender="a", body=body) for number, body in enumerate(bodies)]
        self.sent: list[tuple[bytes, Any, str]] = []
        self.is_read = asyncio.Event()

    async def deliver(self, take: Callable[[bytes, Envelope[Any]], None], rest: Callable[[], None]) -> None:
        while self.inbox:
            take(ROUTE, self.inbox.pop(0))
        rest()
        self.is_read.set()
        await asyncio.Event().wait()

    def send(self, route: bytes, envelope: Envelope[Any]) -> bool:
        self.sent.append((route, envelope.body, envelope.cause))
        return True

    def encoded_for(self, route: bytes, envelope: Envelope[Any]) -> Any:
        return envelope

    def send_each(self, messages: Iterable[tuple[bytes, Any]]) -> None:
        for route, envelope in messages:
            self.send(route, envelope)

    def encoded(self, envelope: Envelope[Any]) -> Any:
        return envelope.body

    def send_to_all(self, routes: Any, frame: Any) -> None:
        pass

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while len(self.sent) < count:  # noqa: ASYNC110 - it is what looks
                await asyncio.sleep(0)


async def test_they_leave_together_and_in_order_by_each_route() -> None:
    server: Any = Server()
    acks = Acks(server, EnvelopeFactory("gmanager"))
    for seq in (1, 2):
        acks.put(ROUTE, HeartbeatAck(seq=seq), f"beat {seq}")
        acks.put(OTHER, HeartbeatAck(seq=10 + seq), f"beat {10 + seq}")
    assert not server.sent
    await server.wait_for(4)
    assert [route for route, _, _ in server.sent] == [ROUTE, ROUTE, OTHER, OTHER]
    assert [(ack.seq, cause) for _, ack, cause in server.sent] == [(n, f"beat {n}") for n in (1, 2, 11, 12)]
    acks.put(ROUTE, HeartbeatAck(seq=3), "beat 3")
    acks.put(OTHER, HeartbeatAck(seq=13), "beat 13")
    acks.send_now(OTHER)
    assert [ack.seq for _, ack, _ in server.sent[4:]] == [13]
    await server.wait_for(6)
    assert [ack.seq for _, ack, _ in server.sent[4:]] == [13, 3]
    acks.put(ROUTE, HeartbeatAck(seq=4), "")
    acks.close()
    acks.send_now(ROUTE)
    assert len(server.sent) == 6


async def test_no_more_than_some_wait_for_each_other() -> None:
    """What is read behind a burst of them is read late."""
    server: Any = Server()
    acks = Acks(server, EnvelopeFactory("gmanager"))
    acks.put(OTHER, HeartbeatAck(seq=0), "")
    acks.send_now(OTHER)
    for seq in range(1, MOST_TOGETHER):
        acks.put(ROUTE, HeartbeatAck(seq=seq), "")
    assert len(server.sent) == 1
    acks.put(OTHER, HeartbeatAck(seq=MOST_TOGETHER), "")
    assert [ack.seq for _, ack, _ in server.sent] == list(range(MOST_TOGETHER + 1))
    acks.put(ROUTE, HeartbeatAck(seq=99), "")
    assert len(server.sent) == MOST_TOGETHER + 1
    await server.wait_for(MOST_TOGETHER + 2)
    acks.close()


async def test_an_answer_that_says_more_leaves_at_once_behind_those_before_it() -> None:
    """Else one that wants everything would be followed by one that says that all is well."""
    member: Member = msgspec.structs.replace(make_member("a"), address="tcp://127.0.0.1:9")
    beat = tg.Heartbeat(instance_id="a", incarnation=member.incarnation, seq=1, base=0, full=True)
    server: Any = Server(
        tg.Join(member=member, compat="model"),
        beat,
        tg.Heartbeat(instance_id="a", incarnation=member.incarnation, seq=7, base=6, full=False),
        tg.Heartbeat(instance_id="b", incarnation=1, seq=1, base=0, full=True),
        tg.Heartbeat(instance_id="a", incarnation=member.incarnation, seq=8, base=0, full=True),
        tg.Locate(request_id="r"),
        tg.Heartbeat(instance_id="a", incarnation=member.incarnation, seq=9, base=8, full=False),
    )
    actor = GManagerActor(GManagerConfig(validate_state=True), server, ManualClock(5.0))
    serving = asyncio.ensure_future(actor.serve())
    try:
        await asyncio.wait_for(server.is_read.wait(), DEADLINE_S)
        kinds = [(type(body).__name__, getattr(body, "seq", 0)) for _, body, _ in server.sent]
        at_once = [("HeartbeatAck", 1), ("HeartbeatAck", 7), ("HeartbeatAck", 1), ("HeartbeatAck", 8), ("Located", 0)]
        assert kinds[:5] == at_once
        assert [body.want_full for _, body, _ in server.sent[:2]] == [False, True]
        assert server.sent[2][1].want_join
        await server.wait_for(6)
        assert server.sent[5][1].seq == 9
    finally:
        serving.cancel()
        actor.close()
        await asyncio.gather(serving, return_exceptions=True)
