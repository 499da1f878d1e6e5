"""Responses of server-sent events, and what happens when the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from distkv.client.owned_tasks import first_of, forget_frames
from distkv.gateway.schema.errors import ApiError, ClientDisconnected

DONE = b"data: [DONE]\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_encoder = msgspec.json.Encoder()
T = TypeVar("T")


class EventWriter:
    """Writes events to one client, one at a time and at its pace. is_started: whether the response has begun."""

    def __init__(self, send: Send) -> None:
        self.is_started = False
        self._send = send
        self._turn = asyncio.Lock()

    async def write(self, body: msgspec.Struct) -> None:
        """Send one event, the status before the first one; returns when the connection takes more."""
        await self._write(b"data: " + _encoder.encode(body) + b"\n\n", more=True)

    async def end(self) -> None:
        """Send the last event and end the response."""
        await self._write(DONE, more=False)

    async def _write(self, event: bytes, *, more: bool) -> None:
        async with self._turn:
            if not self.is_started:
                self.is_started = True
                await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            await self._send({"type": "http.response.body", "body": event, "more_body": more})


class EventStream:
    """A response whose events `produce` writes, as an ASGI application.

    What fails before the first event is raised, and so has a status of its own; what fails later becomes an event with
    the error. Either way [DONE] comes last. `produce` is cancelled when the client disconnects.
    """

    def __init__(
        self, produce: Callable[[EventWriter], Awaitable[None]], explain: Callable[[Exception], ApiError]
    ) -> None:
        self._produce, self._explain = produce, explain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write the whole response."""
        events = EventWriter(send)
        try:
            await until_disconnected(receive, self._produce(events))
        except Exception as error:
            if not events.is_started:
                raise
            if isinstance(error, ClientDisconnected):
                return
            await events.write(self._explain(error).body)
        await events.end()


async def until_disconnected(receive: Receive, work: Awaitable[T]) -> T:
    """What `work` returns; it is cancelled when the client disconnects, which raises ClientDisconnected."""
    failures: list[BaseException] = []
    try:
        return await _watched(receive, work)
    except BaseExceptionGroup as failed:
        failures.append(first_of(failed))
    except asyncio.CancelledError as cancelled:
        forget_frames(cancelled)
        raise
    raise failures.pop()


async def _watched(receive: Receive, work: Awaitable[T]) -> T:
    """Of its own, for its task has the error that `until_disconnected` raises."""
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(_disconnected(receive))
        try:
            return await work
        finally:
            watching.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientDisconnected
