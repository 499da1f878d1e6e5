"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp

from distkv.gateway.api.event_stream import until_disconnected
from distkv.gateway.api.response import job, respond
from distkv.gateway.api.service import Service
from distkv.gateway.generation.choices import Choice
from distkv.gateway.generation.sampling import choices_of
from distkv.gateway.generation.token_texts import TokenTexts
from distkv.gateway.operations.request_log import entry_of
from distkv.gateway.schema.responses import (
    AssistantMessage,
    Chat,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatLogprobs,
    Delta,
    Usage,
)
from distkv.types import Chunk, TokenLogprobs


class Chats:
    """The endpoint."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def create(self, request: Request) -> ASGIApp:
        """Answer one request."""
        service = self._service
        async with service.bodies.complete(request) as raw:
            with service.limit.places():
                read = await until_disconnected(request.receive, service.readers.chat(raw, service.longest_request))
        body, params = read.body, read.params
        prompt = read.prompts[0].token_ids
        if read.max_tokens is None:
            room = service.room(len(prompt))
            params = msgspec.structs.replace(
                params, max_tokens=min(service.model.defaults.get("max_tokens", room), room)
            )
        writer = ChatWriter(
            id="chatcmpl-" + entry_of(request.scope).request_id,
            model=body.model or service.model.names[0],
            texts=TokenTexts(service.model.tokenizer, as_ids=bool(body.return_tokens_as_token_ids)),
            logprobs=bool(body.logprobs),
            prompt_logprobs=body.prompt_logprobs is not None,
        )
        choices = choices_of([prompt], params, body.n or 1, fits=read.max_tokens is None)
        return await respond(service, request, job(body, choices, writer, len(prompt)))


@dataclass
class ChatWriter:
    """How chats are written. logprobs, prompt_logprobs: whether the response has them."""

    id: str
    model: str
    texts: TokenTexts
    logprobs: bool
    prompt_logprobs: bool
    created: int = field(default_factory=lambda: int(time.time()))
    _of_prompt: list[TokenLogprobs | None] = field(default_factory=list)
    _begun: set[int] = field(default_factory=set)

    def pieces(self, choice: Choice, chunk: Chunk) -> Iterator[ChatChunkChoice]:
        """See ResponseWriter."""
        index = choice.index
        if chunk.prompt_logprobs is not None and index == 0:
            self._of_prompt.extend(chunk.prompt_logprobs)
        if not chunk.token_ids and chunk.finish_reason is None:
            return
        if index not in self._begun:
            self._begun.add(index)
            yield ChatChunkChoice(index=index, delta=Delta(role="assistant", content=""))
        if chunk.text or chunk.finish_reason is not None or self.logprobs:
            logprobs = ChatLogprobs(self.texts.chat(chunk.logprobs or [])) if self.logprobs else None
            yield ChatChunkChoice(
                index=index, delta=Delta(content=chunk.text), logprobs=logprobs, finish_reason=chunk.finish_reason
            )

    def event(self, pieces: Sequence[ChatChunkChoice], usage: Usage | msgspec.UnsetType | None) -> ChatChunk:
        """See ResponseWriter."""
        return ChatChunk(id=self.id, created=self.created, model=self.model, choices=list(pieces), usage=usage)

    def whole(self, pieces: Sequence[ChatChunkChoice], usage: Usage) -> Chat:
        """See ResponseWriter."""
        found: dict[int, list[ChatChunkChoice]] = {}
        for piece in pieces:
            found.setdefault(piece.index, []).append(piece)
        return Chat(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=[self._joined(index, found[index]) for index in sorted(found)],
            usage=usage,
            prompt_logprobs=self.texts.prompt(self._of_prompt) if self.prompt_logprobs else msgspec.UNSET,
        )

    def _joined(self, index: int, pieces: Sequence[ChatChunkChoice]) -> ChatChoice:
        found = [token for piece in pieces if piece.logprobs is not None for token in piece.logprobs.content]
        return ChatChoice(
            index=index,
            message=AssistantMessage(content="".join(piece.delta.content or "" for piece in pieces)),
            logprobs=ChatLogprobs(found) if self.logprobs else None,
            finish_reason=pieces[-1].finish_reason,
        )
