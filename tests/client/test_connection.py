"""Connection: what a client holds to one server."""

from __future__ import annotations

import zmq

from distkv.client.connection import Connection
from distkv.client.events import ConnectionLost
from distkv.client.owned_tasks import OwnedTasks
from distkv.types import SamplingParams
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.messages.to_client import TokenChunk
from distkv.wire.messages.to_rmanager import Submit


async def test_last_words_before_the_end_of_a_connection_still_count(start_fakes):
    """An instance that drains sends its last chunks and exits: that it is gone may be seen before they are read."""
    routes = []

    def serve(instance, route, submit):
        routes.append(route)
        return []

    instance = start_fakes(serve).instances[0]
    async with OwnedTasks() as tasks:
        connection = Connection(instance.address, EnvelopeFactory("test"), lambda _address, _members: None, tasks)
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
