"""InstanceActor: what comes by each channel becomes the event of that channel, and commands leave by the right one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from distkv import events
from distkv.actors.event_lines import LINES_IN_A_TURN
from distkv.actors.instance.actor import REFUSED_FOR_S, InstanceActor, InstanceGone
from distkv.actors.instance.connections import GManagerConnections
from distkv.actors.trace import Trace
from distkv.clock import ManualClock
from distkv.config import InstanceConfig, build
from distkv.control import commands as c
from distkv.control.request.answer.output import NoText
from distkv.control.rmanager.state import RManagerSettings
from distkv.control.rmanager.state_machine import RManager
from distkv.types import SamplingParams
from distkv.wire.channel import ClientChannel, ServerChannel
from distkv.wire.codec import MAX_MESSAGE_BYTES
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.inboxes import CLIENT_CONNECTION, GMANAGER_PORT, PEER_CONNECTION, RMANAGER_PORT
from distkv.wire.messages import from_worker as fw
from distkv.wire.messages import to_client as tc
from distkv.wire.messages import to_gmanager as tg
from distkv.wire.messages import to_rmanager as tr
from distkv.wire.messages import to_worker as tw
from distkv.wire.messages.common import Epoch, SpanRef
from distkv.wire.messages.counters import Counters
from tests.control.parts import make_member
from tests.token_ids import prompt_fields
from tests.waiting import soon, until

BLOCK = 4
SPAN = SpanRef(span_id="s", epoch=Epoch(1, 1))


class Core(RManager):
    """Remembers the events that the real one handles."""

    def __init__(self) -> None:
        settings = RManagerSettings(instance_id="a", incarnation=1, block_tokens=BLOCK, num_blocks=16, vocab_size=100)
        super().__init__(settings, NoText, Random(0))
        self.events: list[c.Event] = []

    def handle(self, event: c.Event, now: float) -> list[c.Command]:
        self.events.append(event)
        return super().handle(event, now)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


class Running:
    """An actor between a real port, a real gManager's port, and a worker that only listens."""

    def __init__(self, server: Any, gmanager: Any, tasks: asyncio.TaskGroup) -> None:
        self.core, self.server, self.gmanager = Core(), server, gmanager
        self.commands: list[Any] = []
        worker: Any = SimpleNamespace(send=lambda body, cause: self.commands.append(body))
        envelopes = EnvelopeFactory("a")
        self.gmanagers = GManagerConnections((gmanager.address,), envelopes, tasks)
        config = build(InstanceConfig, {"instance_id": "a", "model": "m", "validate_state": True})
        self.clock = ManualClock(5.0)
        self.actor = InstanceActor(
            config, self.core, make_member("a", pid=10), "compat", server, self.gmanagers, worker, None,
            Trace(None, "a"), envelopes, tasks, self.clock,
        )  # fmt: skip
        self.gmanagers.on_message = self.actor.on_gmanager
        self.gmanagers.on_connected = self.actor.introduce

    def close(self) -> None:
        self.actor.close()
        self.gmanagers.close()


@pytest.fixture
async def running(tasks: asyncio.TaskGroup) -> AsyncIterator[Running]:
    async with (
        ServerChannel.bind("tcp://127.0.0.1:0", RMANAGER_PORT, name="a") as server,
        ServerChannel.bind("tcp://127.0.0.1:0", GMANAGER_PORT, name="gmanager") as gmanager,
    ):
        running = Running(server, gmanager, tasks)
        yield running
        running.close()


async def served(running: Running) -> None:
    """Let the actor take one message that came by its port."""
    route, envelope = await soon(running.server.recv())
    running.actor.on_server(route, envelope.sender, envelope.body, envelope.id)


async def test_a_client_is_known_by_its_route_and_answered_by_it(running: Running) -> None:
    async with ClientChannel.connect(running.server.address, CLIENT_CONNECTION) as client:
        client.send(EnvelopeFactory("i7").wrap(tg.MembersQuery()))
        await served(running)
        answer = await soon(client.recv())
        assert isinstance(answer.body, tr.Members) and answer.sender == "a"
    (event,) = running.core.of(c.ClientRequested)
    assert event.message == tg.MembersQuery()


async def test_what_a_peer_claims_to_be_stays_a_claim(running: Running) -> None:
    async with ClientChannel.connect(running.server.address, PEER_CONNECTION) as peer:
        peer.send(EnvelopeFactory("b").wrap(tr.Renew(renewal=3, spans=(SPAN,), ttl_s=1.0)))
        await served(running)
        answer = (await soon(peer.recv())).body
        assert isinstance(answer, tr.Renewed) and (answer.renewal, answer.refused) == (3, (SPAN,))
    (event,) = running.core.of(c.PeerRequested)
    assert event.claimed_sender == "b" and len(event.route) >= 16


async def test_a_request_becomes_a_step_and_its_result_a_token(running: Running) -> None:
    async with ClientChannel.connect(running.server.address, CLIENT_CONNECTION) as client:
        submit = tr.Submit(
            request_id="r", params=SamplingParams(max_tokens=1, temperature=0.0), **prompt_fields((1, 2, 3))
        )
        client.send(EnvelopeFactory("client").wrap(submit))
        await served(running)
        (step,) = [body for body in running.commands if isinstance(body, tw.Step)]
        assert [(seq.request_id, seq.start, seq.end) for seq in step.seqs] == [("r", 0, 3)]
        done = fw.SeqResult(request_id="r", attempt=step.seqs[0].attempt, status="ok", token=42)
        running.actor.on_worker(fw.StepResult(step_id=step.step_id, results=(done,)), "worker-1")
        chunk = await soon(client.recv())
        assert isinstance(chunk.body, tc.TokenChunk) and chunk.cause == "worker-1"
        assert (chunk.body.token_ids, chunk.body.finish_reason) == ((42,), "length")


async def test_a_status_waits_for_the_workers_counters_and_adds_what_was_refused(running: Running) -> None:
    async with (
        ClientChannel.connect(running.server.address, CLIENT_CONNECTION) as stranger,
        ClientChannel.connect(running.server.address, CLIENT_CONNECTION) as client,
    ):
        stranger.send(EnvelopeFactory("worker").wrap(fw.Revoked(span=SPAN)))
        serving = asyncio.ensure_future(served(running))
        assert isinstance((await soon(stranger.recv())).body, tc.Rejected)
        client.send(EnvelopeFactory("client").wrap(tr.StatusQuery()))
        await serving
        (query,) = [body for body in running.commands if isinstance(body, tw.StatsQuery)]
        running.actor.on_worker(fw.WorkerStats(query_id=query.query_id, counters=Counters(kv_bytes=7)), "")
        status = (await soon(client.recv())).body
        assert isinstance(status, tc.Status)
        assert (status.instance.counters.kv_bytes, status.instance.counters.malformed_messages) == (7, 1)
    assert running.core.of(c.FromWorker) == [], "nothing of a worker comes by TCP"


async def test_it_introduces_itself_to_a_gmanager_and_is_joined_when_all_know_it(running: Running) -> None:
    route, envelope = await soon(running.gmanager.recv())
    assert isinstance(envelope.body, tg.Join) and envelope.body.compat == "compat"
    assert not running.actor.joined.is_set()
    members = tr.Members(version=1, members=(make_member("a", pid=10), make_member("b")))
    running.gmanager.send(route, EnvelopeFactory("gmanager").wrap(members))
    await soon(running.actor.joined.wait())
    assert running.core.of(c.FromGManager) == [c.FromGManager(members)]
    (peers,) = [body for body in running.commands if isinstance(body, tw.Peers)]
    assert [member.instance_id for member in peers.members] == ["b"]


@pytest.mark.parametrize("had_joined", [False, True])
async def test_a_gmanager_that_goes_on_refusing_it_ends_it(running: Running, had_joined: bool) -> None:
    """One that never joined, whatever the reason; one that had, when another process has its name."""
    if had_joined:
        running.actor.on_gmanager(tr.Members(version=1, members=(make_member("a", pid=10),)), "")
    refused = tr.JoinRefused(reason="another one lives", is_taken=had_joined)
    running.actor.on_gmanager(refused, "")
    running.clock.advance(REFUSED_FOR_S - 0.1)
    running.actor.on_gmanager(refused, "")
    ended = asyncio.ensure_future(running.actor.ended())
    await asyncio.sleep(0)
    assert not ended.done(), "the gManager may have heard a stranger first"
    running.clock.advance(0.1)
    running.actor.on_gmanager(refused, "")
    with pytest.raises(InstanceGone, match="the gManager refused this instance: another one lives"):
        await soon(ended)


async def test_it_says_whether_it_belongs_to_the_cluster(running: Running) -> None:
    """Not any more once it was refused: another one may have been let in before it by mistake, or this one was."""
    told = [(await soon(running.gmanager.recv()))[1].body]
    running.actor.on_gmanager(tr.Members(version=1, members=(make_member("a", pid=10),)), "")
    running.actor.introduce()
    told.append((await soon(running.gmanager.recv()))[1].body)
    running.actor.on_gmanager(tr.JoinRefused(reason="another model"), "")
    running.actor.introduce()
    told.append((await soon(running.gmanager.recv()))[1].body)
    assert [isinstance(join, tg.Join) and join.belongs for join in told] == [False, True, False]


async def test_one_that_is_let_in_after_all_stays(running: Running) -> None:
    running.actor.on_gmanager(tr.JoinRefused(reason="another model"), "")
    running.clock.advance(REFUSED_FOR_S - 0.1)
    running.actor.on_gmanager(tr.Members(version=1, members=(make_member("a", pid=10),)), "")
    running.clock.advance(REFUSED_FOR_S)
    running.actor.on_gmanager(tr.JoinRefused(reason="taken", is_taken=True), "")
    ended = asyncio.ensure_future(running.actor.ended())
    await asyncio.sleep(0)
    assert running.actor.joined.is_set() and not ended.done()
    ended.cancel()


async def test_one_that_had_joined_goes_on_when_a_restarted_gmanager_refuses_it(running: Running) -> None:
    members = tr.Members(version=1, members=(make_member("a", pid=10),))
    running.actor.on_gmanager(members, "")
    with capture_logs() as lines:
        for reason in ("another model", "another model", "another dtype"):
            running.actor.on_gmanager(tr.JoinRefused(reason=reason), "")
        running.actor.on_gmanager(members, "")
        running.actor.on_gmanager(tr.JoinRefused(reason="another dtype"), "")
    said = [line["reason"] for line in lines if line["event"] == "a gManager does not let this instance join"]
    assert said == ["another model", "another dtype", "another dtype"], "once while it stays the same"
    ended = asyncio.ensure_future(running.actor.ended())
    await asyncio.sleep(0)
    assert not ended.done()
    ended.cancel()
    await soon(running.gmanager.recv())
    running.actor.on_gmanager(tr.HeartbeatAck(seq=0, want_join=True), "")
    _, envelope = await soon(running.gmanager.recv())
    assert isinstance(envelope.body, tg.Join), "it tries again"


@pytest.mark.parametrize("last_words", [fw.WorkerFailed(reason="out of memory"), None])
async def test_a_worker_that_fails_or_starts_over_ends_it(running: Running, last_words: Any) -> None:
    ready = fw.WorkerReady(
        pid=1, compat="", data=make_member("a").data, block_tokens=4, num_slots=1, eos_token_ids=(), vocab_size=1,
        max_positions=1,
    )  # fmt: skip
    with pytest.raises(InstanceGone, match="the engine worker"):
        running.actor.on_worker(last_words or ready, "")


async def test_a_drained_instance_ends_with_0(running: Running) -> None:
    running.actor.drain()
    assert await soon(running.actor.ended()) == 0


async def route_of(client: ClientChannel[Any], running: Running) -> bytes:
    """By which it is answered, once it has been."""
    client.send(EnvelopeFactory("client").wrap(tg.MembersQuery()))
    await served(running)
    await soon(client.recv())
    (event,) = running.core.of(c.ClientRequested)
    return event.route


async def test_a_tick_says_whether_messages_lie_unread(running: Running) -> None:
    running.actor.tick()
    async with ClientChannel.connect(running.server.address, CLIENT_CONNECTION) as client:
        client.send(EnvelopeFactory("client").wrap(tg.MembersQuery()))
        await until(running.server.has_waiting)
        running.actor.tick()
        await served(running)
        running.actor.tick()
    assert [tick.is_behind for tick in running.core.of(c.Tick)] == [False, True, False]


async def test_an_answer_that_no_client_would_read_fails_its_own_request(running: Running) -> None:
    async with ClientChannel.connect(running.server.address, CLIENT_CONNECTION) as client:
        route = await route_of(client, running)
        chunk = tc.TokenChunk(request_id="r", text="x" * MAX_MESSAGE_BYTES)
        with capture_logs() as lines:
            for _ in range(2):
                running.actor._answer(c.Answer(route, chunk), "")
        running.actor._handle(c.Tick(), "")
        assert [line["event"] for line in lines] == ["a message cannot be sent"]
        for _ in range(2):
            ended = (await soon(client.recv())).body
            assert isinstance(ended, tc.RequestEnded) and ended.request_id == "r" and not ended.retryable
            assert "an answer cannot be sent" in ended.reason
        assert client.connected
    assert c.ClientRequested(route, tr.Cancel(request_id="r")) in running.core.of(c.ClientRequested)


async def test_chunks_that_are_too_long_together_travel_alone(running: Running) -> None:
    async with ClientChannel.connect(running.server.address, CLIENT_CONNECTION) as client:
        route = await route_of(client, running)
        chunks = tuple(tc.TokenChunk(request_id=name, text="x" * (MAX_MESSAGE_BYTES * 2 // 3)) for name in "ab")
        running.actor._answer(c.Answer(route, tc.TokenChunks(chunks=chunks)), "")
        assert [(await soon(client.recv())).body for _ in chunks] == list(chunks)


async def test_a_status_that_is_too_long_comes_without_requests(running: Running) -> None:
    async with ClientChannel.connect(running.server.address, CLIENT_CONNECTION) as client:
        route = await route_of(client, running)
        status = running.core.status(make_member("a", pid=10), Counters())
        request = tc.RequestStatus(request_id="r" * 256, instance_id="a", num_tokens=1, spans=())
        many = msgspec.structs.replace(status, requests=(request,) * 100_000)
        running.actor._answer(c.Answer(route, many), "")
        assert (await soon(client.recv())).body == status
        endless = msgspec.structs.replace(
            status, instance=msgspec.structs.replace(status.instance, state="x" * MAX_MESSAGE_BYTES)
        )
        running.actor._answer(c.Answer(route, endless), "")
        running.actor._answer(c.Answer(route, status), "")
        assert (await soon(client.recv())).body == status


async def test_what_was_published_is_written_before_the_end(running: Running) -> None:
    many = [c.Publish(events.Cancelled(request_id=str(index))) for index in range(4 * LINES_IN_A_TURN)]
    with capture_logs() as lines:
        running.actor._carry_out(many, "why")
        running.actor.close()
    assert [(line["request_id"], line["cause"]) for line in lines] == [(str(i), "why") for i in range(len(many))]
