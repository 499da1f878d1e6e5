"""From the output of the cluster to the response of an endpoint, whole or event by event.

The path of a token, from an instance's socket to the user's:

1. `client.instances.connection.Connection` reads a TokenChunk and queues it for its request;
2. `client.async_client.AsyncClient.stream` takes it (`client.instances.dispatch.Dispatch` chose the instance) and
   yields a Chunk;
3. `generation.choices.Generation.run` measures it and calls the `deliver` of this module with its choice;
4. `deliver` writes it with the endpoint's ResponseWriter, and `event_stream.EventWriter` sends the event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

import msgspec
import structlog
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from distkv.client.async_client import MAX_AT_ONCE
from distkv.errors import RequestRefused
from distkv.gateway.api.event_stream import EventStream, EventWriter, until_disconnected
from distkv.gateway.api.growing_json import JsonResponse, in_pieces
from distkv.gateway.api.service import Service
from distkv.gateway.generation.choices import Choice, Deliver
from distkv.gateway.generation.structured_outputs import as_asked
from distkv.gateway.operations.clients import client_of
from distkv.gateway.operations.held_responses import HeldResponse
from distkv.gateway.operations.request_log import LogEntry, entry_of
from distkv.gateway.schema.errors import ApiError, invalid
from distkv.gateway.schema.requests import SamplingRequest
from distkv.gateway.schema.responses import Usage
from distkv.types import Chunk

MAX_WHOLE_BYTES = 64 * 2**20
"""Of a response that is not streamed, which is held until it is complete."""
P = TypeVar("P", bound=msgspec.Struct)
MakeWhole = Callable[[HeldResponse], Awaitable[Sequence[bytes]]]
"""Makes a response in pieces."""


class ResponseWriter(Protocol[P]):
    """How an endpoint writes its response. A piece is what is new in one choice. size_bytes: about how much of `whole`
    was collected."""

    size_bytes: int

    def pieces(self, choice: Choice, chunk: Chunk) -> Iterable[P]:
        """What a chunk adds; nothing where the client would see no difference."""

    def event(self, pieces: Sequence[P], usage: Usage | msgspec.UnsetType | None) -> msgspec.Struct:
        """One event of the stream; the last one has no pieces, only usage."""

    def collect(self, piece: P) -> None:
        """Keep a piece for `whole`; pieces are in order within each choice."""

    def whole(self, usage: Usage) -> Iterator[bytes]:
        """The response of all pieces that were collected, as parts of JSON; each is kept no longer than until the
        next is taken."""


@dataclass(frozen=True)
class Job(Generic[P]):
    """What is to be made for one HTTP request, and how it is written. prompt_tokens: of all prompts, each once.
    constraint_param: the field of the request that says what the output must be; empty if none does."""

    choices: Sequence[Choice]
    writer: ResponseWriter[P]
    prompt_tokens: int
    constraint_param: str
    is_streamed: bool
    includes_usage: bool
    repeats_usage: bool


def job(
    body: SamplingRequest,
    choices: Sequence[Choice],
    writer: ResponseWriter[P],
    prompt_tokens: int,
    constraint_param: str,
) -> Job[P]:
    """The job of a request."""
    options = body.stream_options
    includes_usage = options is not None and bool(options.include_usage)
    return Job(
        choices,
        writer,
        prompt_tokens,
        constraint_param,
        is_streamed=bool(body.stream),
        includes_usage=includes_usage,
        repeats_usage=includes_usage and options is not None and bool(options.continuous_usage_stats),
    )


async def respond(service: Service, request: Request, job: Job[P]) -> ASGIApp:
    """Run a job and respond with its output."""
    entry, client = entry_of(request.scope), client_of(request.scope)
    entry.prompt_tokens = job.prompt_tokens
    if job.is_streamed:
        return EventStream(partial(_write_events, service, job, entry, client), service.explain)
    return partial(send_whole, service, client, partial(_whole, service, job, entry, client))


async def send_whole(
    service: Service, client: str, make: MakeWhole, scope: Scope, receive: Receive, send: Send
) -> None:
    """A response that is not streamed, as an ASGI application: make it and send it. When it is given up for others, or
    `make` raises ApiError, the response is an error; one that has begun is cut off."""
    is_started = False

    async def send_on(message: Message) -> None:
        nonlocal is_started
        await send(message)
        is_started = True

    try:
        await _hold_and_send(service, client, make, scope, receive, send_on)
        return
    except ApiError as error:
        if is_started:
            # The connection ends: what has begun has no other way to fail.
            structlog.get_logger().warning("a response was cut off", reason=str(error))
            return
        # Not raised: to Starlette a response whose head waits to be sent has begun. Sent later: the error holds what
        # was to be sent.
        refusal = service.explain(error).response()
    await refusal(scope, receive, send)


async def _hold_and_send(
    service: Service, client: str, make: MakeWhole, scope: Scope, receive: Receive, send: Send
) -> None:
    async with service.held.one(client) as held:
        pieces = await until_disconnected(receive, make(held))
        service.held.grown(held, sum(map(len, pieces)))
        await asyncio.sleep(0)  # it may be this one that is given up
        await JsonResponse(pieces)(scope, receive, send)


async def _whole(service: Service, job: Job[P], entry: LogEntry, client: str, held: HeldResponse) -> list[bytes]:
    async def deliver(choice: Choice, chunk: Chunk) -> None:
        entry.generation_tokens += len(chunk.token_ids)
        for piece in job.writer.pieces(choice, chunk):
            job.writer.collect(piece)
        if job.writer.size_bytes > MAX_WHOLE_BYTES:
            problem = f"the response is over the limit of {MAX_WHOLE_BYTES} bytes; request fewer logprobs, or a stream"
            raise invalid(problem, code="response_too_large")
        service.held.grown(held, job.writer.size_bytes)

    await _generate(service, job, entry, client, deliver)
    return await in_pieces(job.writer.whole(_usage(job, entry)))


async def _write_events(service: Service, job: Job[P], entry: LogEntry, client: str, events: EventWriter) -> None:
    without_usage = None if job.includes_usage else msgspec.UNSET

    async def deliver(choice: Choice, chunk: Chunk) -> None:
        entry.generation_tokens += len(chunk.token_ids)
        for piece in job.writer.pieces(choice, chunk):
            usage = _usage(job, entry) if job.repeats_usage else without_usage
            await events.write(job.writer.event([piece], usage))

    await _generate(service, job, entry, client, deliver)
    if job.includes_usage:
        await events.write(job.writer.event([], _usage(job, entry)))


async def _generate(service: Service, job: Job[P], entry: LogEntry, client: str, deliver: Deliver) -> None:
    async with service.limit.places(client, min(len(job.choices), MAX_AT_ONCE)):
        try:
            await service.generation.run(job.choices, entry.request_id, deliver)
        except RequestRefused as error:
            raise as_asked(job.constraint_param, error) from None


def _usage(job: Job[P], entry: LogEntry) -> Usage:
    return Usage(job.prompt_tokens, entry.generation_tokens, job.prompt_tokens + entry.generation_tokens)
