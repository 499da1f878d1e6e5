"""Connection: what a client holds to one server."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest
import zmq

from distkv.client.instances.connection import LONGEST_GAP_S, SILENCE_S, Connection
from distkv.client.instances.events import ConnectionLost, RequestEvents
from distkv.client.owned_tasks import OwnedTasks
from distkv.client.turns import MOST_WOKEN, Turns
from distkv.types import SamplingParams
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.messages.envelope import ToClient
from distkv.wire.messages.to_client import Located, RequestEnded, TokenChunk, TokenChunks
from distkv.wire.messages.to_gmanager import Locate
from distkv.wire.messages.to_rmanager import Submit
from tests.client.fakes import FakeInstance


def ignore(*_: object) -> None:
    """Nobody wants to know."""


class Link:
    """A connection to an instance that says only what it is told to."""

    def __init__(self, connection: Connection, instance: FakeInstance, routes: list[bytes]) -> None:
        self.connection = connection
        self.instance = instance
        self._routes = routes

    async def submit(self, *names: str) -> list[RequestEvents]:
        """Requests by these names, which have reached the instance; what comes for each."""
        streams = [self.connection.attach(name) for name in names]
        for name, events in zip(names, streams, strict=True):
            self.connection.submit(Submit(request_id=name, prompt="x", params=SamplingParams(max_tokens=2)), events)
        await self.instance.wait_for(Submit, len(names))
        return streams

    def say(self, body: ToClient) -> None:
        self.instance.say(self._routes[0], body)


@pytest.fixture
async def link(start_fakes) -> AsyncIterator[Link]:
    routes: list[bytes] = []

    def serve(instance: FakeInstance, route: bytes, submit: Submit) -> list[ToClient]:
        routes.append(route)
        return []

    instance = start_fakes(serve).instances[0]
    async with OwnedTasks() as tasks:
        connection = Connection(instance.address, EnvelopeFactory("test"), ignore, ignore, tasks, Turns())
        try:
            await connection.established(10)
            yield Link(connection, instance, routes)
        finally:
            connection.close()


async def test_last_words_before_the_end_of_a_connection_still_count(link: Link) -> None:
    (events,) = await link.submit("r")
    # From here on the task that reads gets no turn before the end is known.
    last = TokenChunk(request_id="r", token_ids=(7,), text="7", finish_reason="length")
    link.say(last)
    assert link.connection._channel._socket._socket.poll(10_000, zmq.POLLIN)
    link.connection._on_disconnected()
    assert await events.get() == last
    assert isinstance(await events.get(), ConnectionLost)


async def test_an_answer_that_cannot_be_read_fails_the_request_that_it_is_about(link: Link) -> None:
    one, other = await link.submit("a", "b")
    link.say(TokenChunk(request_id="a", prompt_tokens=-1))
    ended = await one.get()
    assert isinstance(ended, RequestEnded) and "prompt_tokens" in ended.reason and not ended.retryable
    link.connection.detach("a", cancel=False)
    link.say(TokenChunk(request_id="a", prompt_tokens=-1))
    last = TokenChunk(request_id="b", token_ids=(7,), finish_reason="length")
    link.say(last)
    assert await other.get() == last, "it costs nobody that nothing waits for the first any more"
    link.say(Located(request_id="x" * 300))
    assert isinstance(await other.get(), ConnectionLost), "nobody knows what it was about"


async def test_an_answer_to_a_locate_that_cannot_be_read_costs_no_stream(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    (events,) = await link.submit("a")
    wrong = Located(request_id="q", address=7)  # type: ignore[arg-type]
    monkeypatch.setattr(link.instance, "answers", lambda _route, _body: [wrong])
    with pytest.raises(ConnectionLost, match="address"):
        await link.connection.locate(Locate(request_id="q"), 10)
    last = TokenChunk(request_id="a", token_ids=(7,), finish_reason="length")
    link.say(last)
    assert await events.get() == last


async def test_chunks_of_several_requests_in_one_message_reach_each_of_them(link: Link) -> None:
    one, other = await link.submit("a", "b")
    first, second = (TokenChunk(request_id=name, token_ids=(at,)) for at, name in enumerate(("a", "b")))
    last = RequestEnded(request_id="a", kind="failed", reason="lost")
    gone = TokenChunk(request_id="gone", token_ids=(9,))
    link.say(TokenChunks(chunks=(first, gone, second)))
    link.say(last)
    assert [await one.get(), await one.get()] == [first, last]
    assert await other.get() == second


async def test_a_message_for_hundreds_lets_others_run_between_them(link: Link) -> None:
    """Each may take a millisecond to pass on what came for it."""
    names = [f"r{index}" for index in range(200)]
    streams = await link.submit(*names)
    turn = 0
    read_in: list[int] = []

    async def read(events: RequestEvents) -> None:
        await events.get()
        read_in.append(turn)

    async with asyncio.TaskGroup() as tasks:
        readers = [tasks.create_task(read(events)) for events in streams]
        await asyncio.sleep(0)
        link.say(TokenChunks(chunks=tuple(TokenChunk(request_id=name, token_ids=(1,)) for name in names)))
        while not all(reader.done() for reader in readers):
            turn += 1
            await asyncio.sleep(0)
    assert max(Counter(read_in).values()) <= MOST_WOKEN and len(read_in) == len(names)


async def test_what_comes_while_others_have_their_turn_is_read_in_one_go(link: Link) -> None:
    """So the more waits, the fewer events are written for it: what a busy gateway gives grows with its streams."""
    names = [f"r{index}" for index in range(10 * MOST_WOKEN)]
    streams = await link.submit(*names)
    async with asyncio.TaskGroup() as tasks:
        readers = [tasks.create_task(events.get()) for events in streams]
        await asyncio.sleep(0)
        for index in range(3):
            for name in names:
                link.connection._take(TokenChunk(request_id=name, token_ids=(index,)))
    assert all(reader.result().token_ids == (0, 1, 2) for reader in readers)


async def test_what_waits_to_be_read_comes_before_the_end_of_the_connection(link: Link) -> None:
    names = [f"r{index}" for index in range(3 * MOST_WOKEN)]
    streams = await link.submit(*names)
    chunks = {name: TokenChunk(request_id=name, token_ids=(1,), finish_reason="length") for name in names}
    link.say(TokenChunks(chunks=tuple(chunks.values())))
    assert await streams[0].get() == chunks["r0"]
    link.connection.close()
    for events in streams[1:]:
        assert await events.get() == chunks[events.request_id]
        assert isinstance(await events.get(), ConnectionLost)


async def test_the_end_of_a_connection_reaches_a_few_readers_in_a_turn(link: Link) -> None:
    streams = await link.submit(*(f"r{index}" for index in range(100)))
    async with asyncio.TaskGroup() as tasks:
        readers = [tasks.create_task(events.get()) for events in streams]
        await asyncio.sleep(0)
        link.connection.close()
        ended = 0
        while ended < len(readers):
            before, ended = ended, sum(reader.done() for reader in readers)
            assert ended - before <= MOST_WOKEN
            await asyncio.sleep(0)


async def test_time_in_which_this_process_stood_still_is_no_silence_of_the_other_end(link: Link) -> None:
    """A gateway that was stopped gave up all streams when it went on, with their tokens in its inbox."""
    await link.submit("r")
    for _ in range(int(SILENCE_S / LONGEST_GAP_S)):
        link.connection._looked_s -= 3600.0
        link.connection.keep_alive(None)
        assert link.connection.lost is None
    link.connection._looked_s -= 3600.0
    link.connection.keep_alive(None)
    assert link.connection.lost is not None and link.connection.lost.why == "silent for 12 s"
