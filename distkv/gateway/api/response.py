"""From the output of the cluster to the response of an endpoint, whole or event by event.

The path of a token, from an instance's socket to the user's:

1. `client.instances.connection.Connection` reads a TokenChunk and queues it for its request;
2. `client.async_client.AsyncClient.stream` takes it (`client.instances.dispatch.Dispatch` chose the instance) and
   yields a Chunk;
3. `generation.choices.Generation.run` measures it and calls the `deliver` of this module with its choice;
4. `deliver` writes it with the endpoint's ResponseWriter, and `event_stream.EventWriter` sends the event.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

import msgspec
import structlog
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

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
        """The response of all pieces that were collected, as parts of JSON."""


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
    return partial(_write_whole, service, job, entry, client)


async def _write_whole(
    service: Service, job: Job[P], entry: LogEntry, client: str, scope: Scope, receive: Receive, send: Send
) -> None:
    is_started = False
    try:
        async with service.held.one(client) as held:
            pieces = await until_disconnected(receive, _whole(service, job, entry, client, held))
            is_started = True
            await JsonResponse(pieces)(scope, receive, send)
    except ApiError as error:
        if not is_started:
            raise
        # The connection ends: what has begun has no other way to fail.
        structlog.get_logger().warning("a response was cut off", reason=str(error))


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
