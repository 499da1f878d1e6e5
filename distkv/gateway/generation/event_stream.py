"""Answers that come as server-sent events, and what happens when the reader leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from distkv.gateway.schema.errors import ApiError

DONE = b"data: [DONE]\n\n"
_encoder = msgspec.json.Encoder()
T = TypeVar("T")


def event(body: msgspec.Struct) -> bytes:
    """One server-sent event."""
    return b"data: " + _encoder.encode(body) + b"\n\n"


class EventStream(StreamingResponse):
    """Sends events as they come, at the reader's pace; whoever leaves ends their making."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(events, headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application of this answer."""
        async with aclosing(self._events):
            await super().__call__(scope, receive, send)


async def started_stream(
    request: Request, events: AsyncGenerator[bytes, None], explain: Callable[[Exception], ApiError]
) -> EventStream:
    """The answer, once the first event is there: what fails before it has a status of its own. What fails later
    becomes an event with the error. Either way [DONE] comes last."""
    try:
        first = await until_disconnected(request, anext(events))
    except BaseException:
        await events.aclose()
        raise

    async def all_events() -> AsyncGenerator[bytes, None]:
        async with aclosing(events):
            yield first
            try:
                async for one in events:
                    yield one
            except Exception as error:
                yield event(explain(error).body)
            yield DONE

    return EventStream(all_events())


async def until_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns; it is cancelled when the client leaves, which raises ApiError 499."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ApiError(499, "the client is gone", close=True)
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
