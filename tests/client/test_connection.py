"""Connection: what a client holds to one server."""

from __future__ import annotations

import zmq

from distkv.client.connection import Connection
from distkv.client.events import ConnectionLost
from distkv.client.owned_tasks import OwnedTasks
from distkv.types import SamplingParams
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.messages.to_client import Located, RequestEnded, TokenChunk, TokenChunks
from distkv.wire.messages.to_rmanager import Submit


def ignore(*_: object) -> None:
    """Nobody wants to know."""


async def test_last_words_before_the_end_of_a_connection_still_count(start_fakes):
    """An instance that drains sends its last chunks and exits: that it is gone may be seen before they are read."""
    routes = []

    def serve(instance, route, submit):
        routes.append(route)
        return []

    instance = start_fakes(serve).instances[0]
    async with OwnedTasks() as tasks:
        connection = Connection(instance.address, EnvelopeFactory("test"), ignore, ignore, tasks)
        await connection.established(10)
        events = connection.attach("r")
        connection.submit(Submit(request_id="r", prompt="x", params=SamplingParams(max_tokens=1)), events)
        await instance.wait_for(Submit)
        # From here on the task that reads gets no turn before the end is known.
        last = TokenChunk(request_id="r", token_ids=(7,), text="7", finish_reason="length")
        instance.say(routes[0], last)
        assert connection._channel._socket._socket.poll(10_000, zmq.POLLIN)
        connection._on_disconnected()
        assert await events.get() == last
        assert isinstance(await events.get(), ConnectionLost)


async def test_an_answer_that_cannot_be_read_fails_the_request_that_it_is_about(start_fakes):
    routes = []

    def serve(instance, route, submit):
        routes.append(route)
        return []

    instance = start_fakes(serve).instances[0]
    async with OwnedTasks() as tasks:
        connection = Connection(instance.address, EnvelopeFactory("test"), ignore, ignore, tasks)
        await connection.established(10)
        streams = {name: connection.attach(name) for name in ("a", "b")}
        for name, events in streams.items():
            connection.submit(Submit(request_id=name, prompt="x", params=SamplingParams(max_tokens=1)), events)
        await instance.wait_for(Submit, 2)
        instance.say(routes[0], TokenChunk(request_id="a", prompt_tokens=-1))
        ended = await streams["a"].get()
        assert isinstance(ended, RequestEnded) and "prompt_tokens" in ended.reason and not ended.retryable
        last = TokenChunk(request_id="b", token_ids=(7,), finish_reason="length")
        instance.say(routes[0], last)
        assert await streams["b"].get() == last
        instance.say(routes[0], Located(request_id="x" * 300))
        assert isinstance(await streams["b"].get(), ConnectionLost), "nobody knows what it was about"


async def test_chunks_of_several_requests_in_one_message_reach_each_of_them(start_fakes):
    routes = []

    def serve(instance, route, submit):
        routes.append(route)
        return []

    instance = start_fakes(serve).instances[0]
    async with OwnedTasks() as tasks:
        connection = Connection(instance.address, EnvelopeFactory("test"), ignore, ignore, tasks)
        await connection.established(10)
        streams = {name: connection.attach(name) for name in ("a", "b")}
        for name, events in streams.items():
            connection.submit(Submit(request_id=name, prompt="x", params=SamplingParams(max_tokens=2)), events)
        await instance.wait_for(Submit, 2)
        first, second, last = (TokenChunk(request_id=name, token_ids=(at,)) for at, name in enumerate(("a", "b", "a")))
        gone = TokenChunk(request_id="gone", token_ids=(9,))
        instance.say(routes[0], TokenChunks(chunks=(first, gone, second, last)))
        assert [await streams["a"].get(), await streams["a"].get()] == [first, last]
        assert await streams["b"].get() == second
