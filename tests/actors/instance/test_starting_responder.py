"""StartingResponder: while the worker loads, clients learn that the instance starts, and nobody else is answered."""

from __future__ import annotations

import asyncio

from distkv.actors.instance.connections import GManagerConnections
from distkv.actors.instance.starting_responder import StartingResponder
from distkv.config import InstanceConfig, build
from distkv.types import SamplingParams
from distkv.wire.channel import ClientChannel, ServerChannel
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.inboxes import CLIENT_CONNECTION, GMANAGER_PORT, RMANAGER_PORT
from distkv.wire.messages import from_worker as fw
from distkv.wire.messages import to_client as tc
from distkv.wire.messages import to_gmanager as tg
from distkv.wire.messages import to_rmanager as tr
from distkv.wire.messages.common import Epoch, SpanRef
from tests.token_ids import prompt_fields
from tests.waiting import soon

CLIENT = EnvelopeFactory("client")


async def test_it_announces_itself_and_turns_requests_away(tasks: asyncio.TaskGroup) -> None:
    config = build(InstanceConfig, {"instance_id": "a", "model": "m"})
    span = SpanRef(span_id="s", epoch=Epoch(1, 1))
    async with (
        ServerChannel.bind("tcp://127.0.0.1:0", GMANAGER_PORT) as gmanager,
        ServerChannel.bind("tcp://127.0.0.1:0", RMANAGER_PORT) as server,
        ClientChannel.connect(server.address, CLIENT_CONNECTION) as client,
        ClientChannel.connect(server.address, CLIENT_CONNECTION) as stranger,
    ):
        gmanagers = GManagerConnections((gmanager.address,), EnvelopeFactory("a"), tasks)
        responder = StartingResponder(config, 7, server, gmanagers, EnvelopeFactory("a"), 11)
        serving = tasks.create_task(responder.serve())
        join = (await soon(gmanager.recv()))[1].body
        assert isinstance(join, tg.Join) and join.compat == ""
        assert (join.member.instance_id, join.member.incarnation, join.member.state) == ("a", 7, "starting")

        stranger.send(CLIENT.wrap(fw.Revoked(span=span)))
        assert isinstance((await soon(stranger.recv())).body, tc.Rejected)
        client.send(CLIENT.wrap(tr.Release(span=span)))
        client.send(CLIENT.wrap(tr.Submit(request_id="r", params=SamplingParams(), **prompt_fields((1,)))))
        ended = (await soon(client.recv())).body
        assert isinstance(ended, tc.RequestEnded), "a peer's message gets no answer"
        assert (ended.kind, ended.retryable, ended.reason) == ("failed", True, "instance a is starting")
        client.send(CLIENT.wrap(tr.StatusQuery()))
        status = (await soon(client.recv())).body
        assert isinstance(status, tc.Status) and status.instance.state == "starting"
        assert server.malformed == 1
        serving.cancel()
        gmanagers.close()
