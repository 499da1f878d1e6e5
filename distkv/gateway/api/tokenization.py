"""POST /tokenize and /detokenize."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from distkv.gateway.api.service import Service, answer
from distkv.gateway.prompting.conversations import conversation_prompt
from distkv.gateway.schema.body import decode, read_body
from distkv.gateway.schema.errors import invalid
from distkv.gateway.schema.requests import REFUSED_TEXT, DetokenizeRequest, TokenizeRequest
from distkv.gateway.schema.responses import Detokenized, Tokenized


class Tokenizing:
    """The endpoints."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def tokenize(self, request: Request) -> Response:
        """The tokens of a prompt or of a conversation, as the cluster would get them."""
        service = self._service
        asked = decode(await read_body(request, service.config.max_body_bytes), TokenizeRequest, REFUSED_TEXT)
        service.model.check_name(asked.model)
        tokenizer = service.model.need_tokenizer()
        if (asked.prompt is None) == (asked.messages is None):
            raise invalid("prompt: give either prompt or messages", "prompt")
        if asked.prompt is not None:
            with_special = asked.add_special_tokens is not False
            ids = await service.model.encode(asked.prompt, "prompt", add_special_tokens=with_special)
        else:
            if not asked.messages:
                raise invalid("messages: is an empty list", "messages")
            ids = await conversation_prompt(service.model, asked.messages, asked)
        strings = list(map(tokenizer.token, ids)) if asked.return_token_strs else None
        return answer(
            Tokenized(count=len(ids), max_model_len=service.max_model_len or None, tokens=ids, token_strs=strings)
        )

    async def detokenize(self, request: Request) -> Response:
        """The text of tokens, special ones left out as in every output."""
        service = self._service
        asked = decode(await read_body(request, service.config.max_body_bytes), DetokenizeRequest, {})
        service.model.check_name(asked.model)
        tokenizer = service.model.need_tokenizer()
        return answer(Detokenized(await service.model.in_thread(lambda: tokenizer.decode(asked.tokens))))
