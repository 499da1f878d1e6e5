"""From the output of the cluster to the answer of an endpoint, whole or event by event."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from distkv.gateway.api.service import Service, answer
from distkv.gateway.generation.choices import Choice
from distkv.gateway.generation.event_stream import event, started_stream, until_disconnected
from distkv.gateway.operations.request_log import RequestFacts, facts_of
from distkv.gateway.schema.requests import SamplingRequest
from distkv.gateway.schema.responses import Usage
from distkv.types import Chunk

P = TypeVar("P", bound=msgspec.Struct)


class Shape(Protocol[P]):
    """How an endpoint writes its answer. A piece is what is new in one choice."""

    def pieces(self, choice: Choice, chunk: Chunk) -> Iterable[P]:
        """What a chunk adds; nothing if nobody would notice."""

    def body(self, pieces: Sequence[P], usage: Usage | msgspec.UnsetType | None) -> msgspec.Struct:
        """One event of the stream; the last one has no pieces, only usage."""

    def whole(self, pieces: Sequence[P], usage: Usage) -> msgspec.Struct:
        """The answer from all pieces, which are in order within each choice."""


@dataclass(frozen=True)
class Job(Generic[P]):
    """What is to be made for one HTTP request, and how it is written. prompt_tokens: of all prompts, each once."""

    choices: Sequence[Choice]
    shape: Shape[P]
    prompt_tokens: int
    is_streamed: bool
    tells_usage: bool
    tells_usage_always: bool


def job(asked: SamplingRequest, choices: Sequence[Choice], shape: Shape[P], prompt_tokens: int) -> Job[P]:
    """The job of a request."""
    options = asked.stream_options
    tells = options is not None and bool(options.include_usage)
    return Job(
        choices,
        shape,
        prompt_tokens,
        is_streamed=bool(asked.stream),
        tells_usage=tells,
        tells_usage_always=tells and options is not None and bool(options.continuous_usage_stats),
    )


async def respond(service: Service, request: Request, job: Job[P]) -> Response:
    """Run a job and answer with its output."""
    facts = facts_of(request.scope)
    facts.prompt_tokens = job.prompt_tokens
    if job.is_streamed:
        return await started_stream(request, _events(service, job, facts), service.explain)
    return answer(await until_disconnected(request, _whole(service, job, facts)))


async def _whole(service: Service, job: Job[P], facts: RequestFacts) -> msgspec.Struct:
    pieces: list[P] = []
    async with aclosing(service.generation.chunks(job.choices, facts.request_id)) as chunks:
        async for choice, chunk in chunks:
            facts.generation_tokens += len(chunk.token_ids)
            pieces.extend(job.shape.pieces(choice, chunk))
    return job.shape.whole(pieces, _usage(job, facts))


async def _events(service: Service, job: Job[P], facts: RequestFacts) -> AsyncGenerator[bytes, None]:
    usage: Usage | msgspec.UnsetType | None = None if job.tells_usage else msgspec.UNSET
    async with aclosing(service.generation.chunks(job.choices, facts.request_id)) as chunks:
        async for choice, chunk in chunks:
            facts.generation_tokens += len(chunk.token_ids)
            for piece in job.shape.pieces(choice, chunk):
                if job.tells_usage_always:
                    usage = _usage(job, facts)
                yield event(job.shape.body([piece], usage))
    if job.tells_usage:
        yield event(job.shape.body([], _usage(job, facts)))


def _usage(job: Job[P], facts: RequestFacts) -> Usage:
    return Usage(job.prompt_tokens, facts.generation_tokens, job.prompt_tokens + facts.generation_tokens)
