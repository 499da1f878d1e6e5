"""A stream of events as an ASGI application, without a server around it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from distkv.gateway.api.event_stream import DONE, EventStream, EventWriter, until_disconnected
from distkv.gateway.schema.errors import ApiError, ClientDisconnected
from distkv.gateway.schema.responses import Health


class Connection:
    """An HTTP connection: what was sent, and `disconnect`. Every send waits for `takes_more`."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.takes_more = asyncio.Event()
        self.takes_more.set()
        self.disconnect = asyncio.Event()
        self._is_sending = False

    async def send(self, message: Any) -> None:
        assert not self._is_sending, "two messages at the same time"
        self._is_sending = True
        await asyncio.sleep(0)
        await self.takes_more.wait()
        self._is_sending = False
        self.sent.append(message)

    async def receive(self) -> Any:
        await self.disconnect.wait()
        return {"type": "http.disconnect"}

    async def run(self, stream: EventStream) -> None:
        await stream({"type": "http"}, self.receive, self.send)

    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.sent if message["type"] == "http.response.body"]


def explain(error: Exception) -> ApiError:
    return ApiError(500, f"explained: {error}")


def event(status: str) -> bytes:
    return b"data: " + msgspec.json.encode(Health(status)) + b"\n\n"


async def test_events_and_the_end() -> None:
    async def produce(events: EventWriter) -> None:
        await events.write(Health("a"))
        await events.write(Health("b"))

    connection = Connection()
    await connection.run(EventStream(produce, explain))
    start, *bodies = connection.sent
    assert start["status"] == 200 and (b"content-type", b"text/event-stream; charset=utf-8") in start["headers"]
    assert connection.bodies() == [event("a"), event("b"), DONE]
    assert [message["more_body"] for message in bodies] == [True, True, False]


async def test_events_of_several_tasks_are_sent_one_at_a_time() -> None:
    async def produce(events: EventWriter) -> None:
        async with asyncio.TaskGroup() as group:
            for status in "abcd":
                group.create_task(events.write(Health(status)))

    connection = Connection()
    await connection.run(EventStream(produce, explain))
    assert connection.sent[0]["type"] == "http.response.start"
    assert connection.bodies() == [*(event(status) for status in "abcd"), DONE]


async def test_a_writer_waits_for_a_slow_client() -> None:
    written: list[str] = []

    async def produce(events: EventWriter) -> None:
        for status in "ab":
            await events.write(Health(status))
            written.append(status)

    connection = Connection()
    connection.takes_more.clear()
    task = asyncio.create_task(connection.run(EventStream(produce, explain)))
    for _ in range(20):
        await asyncio.sleep(0)
    assert written == [] and connection.sent == []
    connection.takes_more.set()
    await task
    assert written == ["a", "b"]


async def test_what_fails_before_the_first_event_is_raised_and_nothing_sent() -> None:
    async def produce(events: EventWriter) -> None:
        raise ValueError("no")

    connection = Connection()
    with pytest.raises(ValueError, match="no"):
        await connection.run(EventStream(produce, explain))
    assert connection.sent == []


async def test_what_fails_later_is_the_last_event_but_the_end() -> None:
    async def produce(events: EventWriter) -> None:
        await events.write(Health("a"))
        raise ValueError("no")

    connection = Connection()
    await connection.run(EventStream(produce, explain))
    first, failure, end = connection.bodies()
    assert first == event("a") and end == DONE
    assert msgspec.json.decode(failure.removeprefix(b"data: "))["error"]["message"] == "explained: no"


@pytest.mark.parametrize("is_started", [False, True])
async def test_a_client_that_disconnects_ends_the_work(is_started: bool) -> None:
    ended = asyncio.Event()

    async def produce(events: EventWriter) -> None:
        try:
            if is_started:
                await events.write(Health("a"))
            connection.disconnect.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    connection = Connection()
    if is_started:
        await connection.run(EventStream(produce, explain))
    else:
        with pytest.raises(ClientDisconnected):
            await connection.run(EventStream(produce, explain))
    assert ended.is_set()
    assert connection.bodies() == ([event("a")] if is_started else [])


async def test_cancelling_the_response_cancels_the_work_and_stays_a_cancellation() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def produce(events: EventWriter) -> None:
        try:
            await events.write(Health("a"))
            begun.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    connection = Connection()
    task = asyncio.create_task(connection.run(EventStream(produce, explain)))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set() and connection.bodies() == [event("a")]


async def test_work_that_ends_first_returns_its_result() -> None:
    connection = Connection()

    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    assert await until_disconnected(connection.receive, work()) == 7
