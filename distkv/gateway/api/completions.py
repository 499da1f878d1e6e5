"""POST /v1/completions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp

from distkv.gateway.api.growing_json import JsonArray, JsonText, json_array, json_object, json_value
from distkv.gateway.api.response import job, respond
from distkv.gateway.api.service import Service
from distkv.gateway.generation.choices import Choice
from distkv.gateway.generation.sampling import choices_of
from distkv.gateway.generation.text_offsets import TextOffsets
from distkv.gateway.generation.token_texts import TokenTexts, token_texts, with_most
from distkv.gateway.operations.clients import client_of
from distkv.gateway.operations.request_log import entry_of
from distkv.gateway.prompting.reading import DEFAULT_MAX_TOKENS
from distkv.gateway.schema.responses import Completion, CompletionChoice, CompletionLogprobs, StopReason, Usage
from distkv.types import Chunk, FinishReason, TokenLogprobs


class Completions:
    """The endpoint."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def create(self, request: Request) -> ASGIApp:
        """Answer one request."""
        service = self._service
        async with service.bodies.complete(request) as parts:
            client = client_of(request.scope)
            read = await service.in_place(
                request, lambda: service.readers.completion(parts, service.longest_request, client)
            )
        body, prompts = read.body, read.prompts
        writer = CompletionWriter(
            id="cmpl-" + entry_of(request.scope).request_id,
            model=body.model or service.model.names[0],
            texts=token_texts(service.model.tokenizer, body),
            echoed=[prompt.text or "" for prompt in prompts] if body.echo else None,
            logprobs=body.logprobs,
            prompt_logprobs=body.prompt_logprobs,
        )
        fits = read.max_tokens is None
        asked = [
            (ids, service.within_room(read.params, len(ids), DEFAULT_MAX_TOKENS) if fits else read.params)
            for ids in (prompt.token_ids for prompt in prompts)
        ]
        choices = choices_of(asked, body.n or 1, fits=fits, only_prompt=read.max_tokens == 0)
        prompt_tokens = sum(len(prompt.token_ids) for prompt in prompts)
        return await respond(service, request, job(body, choices, writer, prompt_tokens, read.constraint_param))


@dataclass
class CompletionWriter:
    """How completions are written. echoed: texts of the prompts, which come before the outputs. logprobs,
    prompt_logprobs: how many likely tokens the response has of each; None if it has no logprobs."""

    id: str
    model: str
    texts: TokenTexts
    echoed: Sequence[str] | None
    logprobs: int | None
    prompt_logprobs: int | None
    created: int = field(default_factory=lambda: int(time.time()))
    size_bytes: int = 0
    _reported: dict[int, int] = field(default_factory=dict)
    _echoing: dict[int, TextOffsets] = field(default_factory=dict)
    _offsets: dict[int, TextOffsets] = field(default_factory=dict)
    _begun: set[int] = field(default_factory=set)
    _collected: dict[int, _Collected] = field(default_factory=dict)

    def pieces(self, choice: Choice, chunk: Chunk) -> Iterator[CompletionChoice]:
        """See ResponseWriter."""
        index = choice.index
        if chunk.prompt_logprobs:
            yield self._of_prompt(choice, chunk.prompt_logprobs)
        if not chunk.token_ids and not chunk.text and chunk.finish_reason is None:
            return
        if self.echoed is not None and index not in self._begun:
            self._begun.add(index)
            yield CompletionChoice(index=index, text=self.echoed[choice.prompt_index])
        has_logprobs = self.logprobs is not None
        if chunk.text or chunk.finish_reason is not None or has_logprobs:
            logprobs = self._of_output(choice, chunk.token_ids, chunk.logprobs or []) if has_logprobs else None
            ended = chunk.finish_reason
            why = msgspec.UNSET if ended is None else chunk.stop_reason
            yield CompletionChoice(
                index=index, text=chunk.text, logprobs=logprobs, finish_reason=ended, stop_reason=why
            )

    def event(self, pieces: Sequence[CompletionChoice], usage: Usage | msgspec.UnsetType | None) -> Completion:
        """See ResponseWriter."""
        return Completion(id=self.id, created=self.created, model=self.model, choices=list(pieces), usage=usage)

    def collect(self, piece: CompletionChoice) -> None:
        """See ResponseWriter."""
        self.size_bytes += self._collected.setdefault(piece.index, _Collected()).take(piece)

    def whole(self, usage: Usage) -> Iterator[bytes]:
        """See ResponseWriter."""
        return json_object(
            id=json_value(self.id),
            object=json_value("text_completion"),
            created=json_value(self.created),
            model=json_value(self.model),
            choices=json_array(self._choice(index, self._collected.pop(index)) for index in sorted(self._collected)),
            usage=json_value(usage),
        )

    def _choice(self, index: int, collected: _Collected) -> Iterator[bytes]:
        logprobs = {name: array.parts() for name, array in collected.logprobs.items()}
        of_prompt = {"prompt_logprobs": collected.of_prompt.parts()} if self.prompt_logprobs is not None else {}
        return json_object(
            index=json_value(index),
            text=collected.text.parts(),
            logprobs=json_object(**logprobs) if self.logprobs is not None else json_value(None),
            finish_reason=json_value(collected.finish_reason),
            stop_reason=json_value(collected.stop_reason),
            **of_prompt,
        )

    def _of_prompt(self, choice: Choice, found: Sequence[TokenLogprobs | None]) -> CompletionChoice:
        """The logprobs of the next tokens of the prompt; with the first of them comes its text, if they are echoed."""
        index, text, logprobs = choice.index, "", None
        if self.echoed is not None and self.logprobs is not None:
            if index not in self._begun:
                self._begun.add(index)
                text = self.echoed[choice.prompt_index]
                self._echoing[index] = self.texts.offsets(begin_text=True)
            start = self._reported.get(index, 0)
            self._reported[index] = start + len(found)
            ids, echoed = choice.prompt[start : start + len(found)], self.echoed[choice.prompt_index]
            starts = self._echoing[index].starts(ids, echoed)
            logprobs = self.texts.completion(ids, with_most(found, self.logprobs), starts)
        wanted = self.prompt_logprobs
        of_prompt = msgspec.UNSET if wanted is None else self.texts.prompt(with_most(found, wanted))
        return CompletionChoice(index=index, text=text, logprobs=logprobs, prompt_logprobs=of_prompt)

    def _of_output(
        self, choice: Choice, token_ids: Sequence[int], found: Sequence[TokenLogprobs | None]
    ) -> CompletionLogprobs:
        offsets = self._offsets.get(choice.index)
        if offsets is None:
            place = len(self.echoed[choice.prompt_index]) if self.echoed is not None else 0
            begin_text = not place and not any(map(self.texts.is_shown, choice.prompt))
            offsets = self._offsets[choice.index] = self.texts.offsets(place, begin_text=begin_text)
        return self.texts.completion(token_ids, found, offsets.starts(token_ids))


class _Collected:
    """What came of one choice."""

    def __init__(self) -> None:
        self.text = JsonText()
        self.logprobs = {name: JsonArray() for name in CompletionLogprobs.__struct_fields__}
        self.of_prompt = JsonArray()
        self.finish_reason: FinishReason | None = None
        self.stop_reason: StopReason = None

    def take(self, piece: CompletionChoice) -> int:
        """Add a piece; returns its size in bytes."""
        self.finish_reason = piece.finish_reason
        self.stop_reason = None if piece.stop_reason is msgspec.UNSET else piece.stop_reason
        size_bytes = self.text.extend(piece.text)
        if piece.logprobs is not None:
            size_bytes += sum(array.extend(getattr(piece.logprobs, name)) for name, array in self.logprobs.items())
        if piece.prompt_logprobs:
            size_bytes += self.of_prompt.extend(piece.prompt_logprobs)
        return size_bytes
