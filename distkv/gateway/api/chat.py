"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import starmap

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp

from distkv.gateway.api.growing_json import JsonArray, JsonText, json_array, json_object, json_value
from distkv.gateway.api.response import job, respond
from distkv.gateway.api.service import Service
from distkv.gateway.generation.choices import Choice
from distkv.gateway.generation.sampling import choices_of
from distkv.gateway.generation.token_texts import TokenTexts, token_texts
from distkv.gateway.generation.tool_use import CallWriter, ToolUse
from distkv.gateway.operations.clients import client_of
from distkv.gateway.operations.request_log import entry_of
from distkv.gateway.schema.responses import (
    ChatChunk,
    ChatChunkChoice,
    ChatFinishReason,
    ChatLogprobs,
    Delta,
    DeltaToolCall,
    StopReason,
    Usage,
)
from distkv.types import Chunk


class Chats:
    """The endpoint."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def create(self, request: Request) -> ASGIApp:
        """Answer one request."""
        service = self._service
        async with service.bodies.complete(request) as parts:
            client = client_of(request.scope)
            read = await service.in_place(request, lambda: service.readers.chat(parts, service.longest_request, client))
        body, params = read.body, read.params
        prompt = read.prompts[0].token_ids
        if read.max_tokens is None:
            params = service.within_room(params, len(prompt), None)
        writer = ChatWriter(
            id="chatcmpl-" + entry_of(request.scope).request_id,
            model=body.model or service.model.names[0],
            texts=token_texts(service.model.tokenizer, body),
            logprobs=bool(body.logprobs),
            prompt_logprobs=body.prompt_logprobs is not None,
            tool_use=read.tool_use,
        )
        how = {"fits": read.max_tokens is None, "has_calls": read.tool_use is not None}
        choices = choices_of([(prompt, params)], body.n or 1, **how)
        return await respond(service, request, job(body, choices, writer, len(prompt), read.constraint_param))


@dataclass
class ChatWriter:
    """How chats are written. logprobs, prompt_logprobs: whether the response has them. tool_use: None if its outputs
    are read for no tool calls."""

    id: str
    model: str
    texts: TokenTexts
    logprobs: bool
    prompt_logprobs: bool
    tool_use: ToolUse | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    size_bytes: int = 0
    _begun: set[int] = field(default_factory=set)
    _calls: dict[int, CallWriter] = field(default_factory=dict)
    _of_prompt: JsonArray = field(default_factory=JsonArray)
    _collected: dict[int, CollectedMessage] = field(default_factory=dict)

    def pieces(self, choice: Choice, chunk: Chunk) -> Iterator[ChatChunkChoice]:
        """See ResponseWriter."""
        index = choice.index
        if chunk.prompt_logprobs is not None and index == 0:
            self.size_bytes += self._of_prompt.extend(self.texts.prompt(chunk.prompt_logprobs))
        if not chunk.token_ids and not chunk.text and chunk.finish_reason is None:
            return
        if index not in self._begun:
            self._begun.add(index)
            yield ChatChunkChoice(index=index, delta=Delta(role="assistant", content=""))
        deltas, reason = self._deltas(index, chunk)
        if chunk.finish_reason is None and not self.logprobs:
            yield from (ChatChunkChoice(index=index, delta=delta) for delta in deltas)
            return
        *before, last = deltas or [Delta()]
        yield from (ChatChunkChoice(index=index, delta=delta) for delta in before)
        logprobs = ChatLogprobs(self.texts.chat(chunk.logprobs or [])) if self.logprobs else None
        why = msgspec.UNSET if reason is None else chunk.stop_reason
        yield ChatChunkChoice(index=index, delta=last, logprobs=logprobs, finish_reason=reason, stop_reason=why)

    def _deltas(self, index: int, chunk: Chunk) -> tuple[list[Delta], ChatFinishReason | None]:
        """What is new in a choice, and why it ends."""
        ended = chunk.finish_reason
        if self.tool_use is None:
            is_empty = not chunk.text and ended is None and not self.logprobs
            return [] if is_empty else [Delta(content=chunk.text)], ended
        calls = self._calls.setdefault(index, CallWriter(self.tool_use))
        deltas = list(calls.deltas(chunk.text, is_last=ended is not None))
        return deltas, "tool_calls" if ended == "stop" and calls.has_called else ended

    def event(self, pieces: Sequence[ChatChunkChoice], usage: Usage | msgspec.UnsetType | None) -> ChatChunk:
        """See ResponseWriter."""
        return ChatChunk(id=self.id, created=self.created, model=self.model, choices=list(pieces), usage=usage)

    def collect(self, piece: ChatChunkChoice) -> None:
        """See ResponseWriter."""
        self.size_bytes += self._collected.setdefault(piece.index, CollectedMessage()).take(piece)

    def whole(self, usage: Usage) -> Iterator[bytes]:
        """See ResponseWriter."""
        of_prompt = {"prompt_logprobs": self._of_prompt.parts()} if self.prompt_logprobs else {}
        return json_object(
            id=json_value(self.id),
            object=json_value("chat.completion"),
            created=json_value(self.created),
            model=json_value(self.model),
            choices=json_array(self._choice(index, self._collected.pop(index)) for index in sorted(self._collected)),
            usage=json_value(usage),
            **of_prompt,
        )

    def _choice(self, index: int, collected: CollectedMessage) -> Iterator[bytes]:
        return json_object(
            index=json_value(index),
            message=collected.parts(),
            logprobs=json_object(content=collected.logprobs.parts()) if self.logprobs else json_value(None),
            finish_reason=json_value(collected.finish_reason),
            stop_reason=json_value(collected.stop_reason),
        )


class CollectedMessage:
    """What came of one choice."""

    def __init__(self) -> None:
        self.logprobs = JsonArray()
        self.finish_reason: ChatFinishReason | None = None
        self.stop_reason: StopReason = None
        self._text = JsonText()
        self._calls: list[tuple[DeltaToolCall, JsonText]] = []

    def take(self, piece: ChatChunkChoice) -> int:
        """Add a piece; returns its size in bytes."""
        self.finish_reason = piece.finish_reason
        self.stop_reason = None if piece.stop_reason is msgspec.UNSET else piece.stop_reason
        size_bytes = self._text.extend(piece.delta.content or "")
        for call in piece.delta.tool_calls or ():
            if call.index == len(self._calls):
                self._calls.append((call, JsonText()))
                size_bytes += len(call.function.name or "")
            size_bytes += self._calls[call.index][1].extend(call.function.arguments or "")
        if piece.logprobs is not None:
            size_bytes += self.logprobs.extend(piece.logprobs.content)
        return size_bytes

    def parts(self) -> Iterator[bytes]:
        """The message. Its content is null if there are only tool calls."""
        calls = {"tool_calls": json_array(starmap(_call, self._calls))} if self._calls else {}
        content = self._text.parts() if self._text or not self._calls else json_value(None)
        return json_object(role=json_value("assistant"), content=content, **calls)


def _call(begun: DeltaToolCall, arguments: JsonText) -> Iterator[bytes]:
    function = json_object(name=json_value(begun.function.name), arguments=arguments.parts())
    return json_object(id=json_value(begun.id), type=json_value(begun.type), function=function)
