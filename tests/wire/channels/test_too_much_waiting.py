"""Whoever sends faster than its messages are handled is cut off, however slowly they are handled; others are not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from distkv.wire.channel import ClientChannel, ServerChannel
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.inboxes import CAPTURE
from distkv.wire.messages.envelope import Control
from distkv.wire.messages.to_gmanager import MembersQuery
from distkv.wire.messages.to_rmanager import KeepAlive
from distkv.wire.sockets import loop_socket
from distkv.wire.sockets.waiting_messages import WaitingLimit
from tests.waiting import soon, until

FEW, MANY = WaitingLimit(frames=100), 1000
COST_S = 1.0


class SlowClock:
    """Each message takes COST_S to handle."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowClock]:
    clock = SlowClock()
    monkeypatch.setattr(loop_socket, "time", SimpleNamespace(monotonic=clock.monotonic))
    yield clock


async def test_a_client_that_sends_faster_than_is_handled(clock: SlowClock, envelopes: EnvelopeFactory) -> None:
    lost: list[str] = []
    heard: list[Control] = []
    async with ServerChannel[Control].bind("tcp://127.0.0.1:0", CAPTURE) as server:
        server._socket._ahead._limit = FEW

        async def handle() -> None:
            while True:
                heard.append((await server.recv())[1].body)
                clock.now_s += COST_S

        async with (
            ClientChannel.connect(server.address, CAPTURE, on_disconnected=lambda: lost.append("flooder")) as flooder,
            ClientChannel.connect(server.address, CAPTURE, on_disconnected=lambda: lost.append("other")) as other,
        ):
            with capture_logs() as lines:
                for _ in range(MANY):
                    flooder.send(envelopes.wrap(KeepAlive()))
                await until(server.has_waiting)
                handling = asyncio.create_task(handle())
                await until(lambda: lost)
                other.send(envelopes.wrap(MembersQuery()))
                await until(lambda: MembersQuery() in heard)
            handling.cancel()
            assert lost == ["flooder"] and server.malformed
            assert heard.count(KeepAlive()) <= FEW.frames, "what waits of it is not taken any more"
            assert ("a connection sent too much", True) in [(line["event"], line["shut"]) for line in lines]


async def test_a_client_drops_nothing_of_its_server_however_slow_it_is(
    clock: SlowClock, envelopes: EnvelopeFactory
) -> None:
    """A stream of tokens with a hole in it would end as one that is whole."""
    async with (
        ServerChannel[Control].bind("tcp://127.0.0.1:0", CAPTURE) as server,
        ClientChannel[Control].connect(server.address, CAPTURE) as client,
    ):
        client.send(envelopes.wrap(MembersQuery()))
        route, _ = await soon(server.recv())
        sent = [envelopes.wrap(KeepAlive()) for _ in range(MANY)]
        assert all(server.send(route, one) for one in sent)
        heard = []
        while len(heard) < MANY:
            heard.append((await soon(client.recv())).id)
            clock.now_s += COST_S
        assert heard == [one.id for one in sent] and client.connected and not client.malformed
