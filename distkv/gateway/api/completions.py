"""POST /v1/completions."""

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
from distkv.gateway.schema.responses import Completion, CompletionChoice, CompletionLogprobs, Usage
from distkv.types import Chunk, TokenLogprobs


class Completions:
    """The endpoint."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def create(self, request: Request) -> ASGIApp:
        """Answer one request."""
        service = self._service
        async with service.bodies.complete(request) as raw:
            with service.limit.places():
                read = await until_disconnected(
                    request.receive, service.readers.completion(raw, service.longest_request)
                )
        body, prompts = read.body, read.prompts
        writer = CompletionWriter(
            id="cmpl-" + entry_of(request.scope).request_id,
            model=body.model or service.model.names[0],
            texts=TokenTexts(service.model.tokenizer, as_ids=bool(body.return_tokens_as_token_ids)),
            echoed=[prompt.text or "" for prompt in prompts] if body.echo else None,
            logprobs=body.logprobs is not None,
            prompt_logprobs=body.prompt_logprobs is not None,
        )
        choices = choices_of(
            [prompt.token_ids for prompt in prompts], read.params, body.n or 1, only_prompt=not read.max_tokens
        )
        prompt_tokens = sum(len(prompt.token_ids) for prompt in prompts)
        return await respond(service, request, job(body, choices, writer, prompt_tokens))


@dataclass
class CompletionWriter:
    """How completions are written. echoed: texts of the prompts, which come before the outputs. logprobs,
    prompt_logprobs: whether the response has them."""

    id: str
    model: str
    texts: TokenTexts
    echoed: Sequence[str] | None
    logprobs: bool
    prompt_logprobs: bool
    created: int = field(default_factory=lambda: int(time.time()))
    _of_prompts: dict[int, list[TokenLogprobs | None]] = field(default_factory=dict)
    _offsets: dict[int, int] = field(default_factory=dict)

    def pieces(self, choice: Choice, chunk: Chunk) -> Iterator[CompletionChoice]:
        """See ResponseWriter."""
        index = choice.index
        if chunk.prompt_logprobs is not None:
            self._of_prompts.setdefault(index, []).extend(chunk.prompt_logprobs)
        if not chunk.token_ids and chunk.finish_reason is None:
            return
        if index not in self._offsets:
            self._offsets[index] = 0
            if self.echoed is not None:
                yield self._echo(choice, self.echoed[choice.prompt_index])
        if chunk.text or chunk.finish_reason is not None or self.logprobs:
            logprobs = self._logprobs(index, chunk.token_ids, chunk.logprobs or []) if self.logprobs else None
            yield CompletionChoice(index=index, text=chunk.text, logprobs=logprobs, finish_reason=chunk.finish_reason)

    def event(self, pieces: Sequence[CompletionChoice], usage: Usage | msgspec.UnsetType | None) -> Completion:
        """See ResponseWriter."""
        return Completion(id=self.id, created=self.created, model=self.model, choices=list(pieces), usage=usage)

    def whole(self, pieces: Sequence[CompletionChoice], usage: Usage) -> Completion:
        """See ResponseWriter."""
        found: dict[int, list[CompletionChoice]] = {}
        for piece in pieces:
            found.setdefault(piece.index, []).append(piece)
        return self.event([self._joined(index, found[index]) for index in sorted(found)], usage)

    def _joined(self, index: int, pieces: Sequence[CompletionChoice]) -> CompletionChoice:
        found = [piece.logprobs for piece in pieces if piece.logprobs is not None]
        logprobs = CompletionLogprobs(
            tokens=[token for one in found for token in one.tokens],
            token_logprobs=[logprob for one in found for logprob in one.token_logprobs],
            top_logprobs=[top for one in found for top in one.top_logprobs],
            text_offset=[offset for one in found for offset in one.text_offset],
        )
        of_prompt = self.texts.prompt(self._of_prompts.get(index, []))
        return CompletionChoice(
            index=index,
            text="".join(piece.text for piece in pieces),
            logprobs=logprobs if self.logprobs else None,
            finish_reason=pieces[-1].finish_reason,
            prompt_logprobs=of_prompt if self.prompt_logprobs else msgspec.UNSET,
        )

    def _echo(self, choice: Choice, text: str) -> CompletionChoice:
        logprobs = None
        if self.logprobs:
            logprobs = self._logprobs(choice.index, choice.prompt, self._of_prompts.get(choice.index, []))
        return CompletionChoice(index=choice.index, text=text, logprobs=logprobs)

    def _logprobs(
        self, index: int, token_ids: Sequence[int], found: Sequence[TokenLogprobs | None]
    ) -> CompletionLogprobs:
        made = self.texts.completion(token_ids, found, self._offsets[index])
        self._offsets[index] += sum(map(self.texts.width, token_ids))
        return made
