"""A connection that floods is shut; nobody else notices."""

from __future__ import annotations

import asyncio
import time

import zmq

from distkv.wire.channel import ClientChannel, ServerChannel
from distkv.wire.codec import encode_envelope
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.inboxes import CAPTURE
from distkv.wire.messages.envelope import Control
from distkv.wire.messages.to_gmanager import MembersQuery
from distkv.wire.messages.to_rmanager import KeepAlive
from distkv.wire.sockets.flood_guard import BARRED_S, LEAST_HEADER_BYTES, QUOTA_S, FloodGuard

DEADLINE_S = 20.0
MESSAGES = 2000


def test_each_route_has_a_quota_of_messages_and_bytes() -> None:
    guard = FloodGuard(messages=3, size_bytes=100)
    assert [guard.admits(b"a", 10, 5.0) for _ in range(4)] == [True, True, True, False]
    assert guard.is_flooding(b"a")
    assert [guard.admits(b"b", 60, 5.1) for _ in range(2)] == [True, False]
    assert guard.is_flooding(b"b") and not guard.is_flooding(b"c")
    assert guard.admits(b"a", 10, 5.0 + QUOTA_S, messages=3) and not guard.is_flooding(b"a")
    assert not guard.admits(b"c", 10, 5.0 + QUOTA_S, messages=4), "one of many parts is as many"


def test_a_route_that_flooded_is_barred_for_a_while() -> None:
    guard = FloodGuard(messages=1)
    assert guard.admits(b"a", 10, 5.0) and not guard.admits(b"a", 10, 5.0)
    assert guard.bar(b"a", 5.0) == 2 * (10 + LEAST_HEADER_BYTES)
    assert not guard.is_flooding(b"a")
    assert not guard.admits(b"a", 1, 5.0 + QUOTA_S) and guard.admits(b"b", 1, 5.0 + QUOTA_S)
    assert guard.admits(b"a", 1, 5.0 + BARRED_S + QUOTA_S)


async def test_one_that_floods_is_shut_and_others_are_heard() -> None:
    envelopes = EnvelopeFactory("a")
    flood = [encode_envelope(envelopes.wrap(KeepAlive()))] * 1000
    guard = FloodGuard(messages=MESSAGES)
    async with (
        ServerChannel[Control].bind("tcp://127.0.0.1:0", CAPTURE, guard=guard) as server,
        ClientChannel.connect(server.address, CAPTURE) as client,
    ):
        stranger: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        stranger.sndhwm = 0
        monitor = stranger.get_monitor_socket(zmq.Event.DISCONNECTED)
        stranger.connect(server.address)
        try:

            def send_until_shut() -> bool:
                deadline = time.monotonic() + DEADLINE_S
                while time.monotonic() < deadline:
                    for frame in flood:
                        stranger.send(frame)
                    if monitor.poll(0):
                        return True
                return False

            flooding = asyncio.ensure_future(asyncio.to_thread(send_until_shut))
            heard = 0
            while not flooding.done() and heard < MESSAGES // 2:  # the same is admitted of it
                client.send(envelopes.wrap(MembersQuery()))
                async with asyncio.timeout(DEADLINE_S):
                    while not isinstance((await server.recv())[1].body, MembersQuery):
                        pass
                heard += 1
            assert await flooding and heard
        finally:
            stranger.disable_monitor()
            monitor.close(0)
            stranger.close(0)
