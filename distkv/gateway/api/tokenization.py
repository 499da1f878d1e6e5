"""POST /tokenize and /detokenize."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from distkv.gateway.api.service import Service
from distkv.gateway.prompting.conversations import conversation_prompt
from distkv.gateway.schema.body import decode, read_body
from distkv.gateway.schema.errors import invalid
from distkv.gateway.schema.requests import REFUSED_TEXT, DetokenizeRequest, TokenizeRequest
from distkv.gateway.schema.responses import Detokenized, Tokenized, json_response


class Tokenizing:
    """The endpoints."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def tokenize(self, request: Request) -> Response:
        """The tokens of a prompt or of a conversation, as the cluster would get them."""
        service = self._service
        body = decode(await read_body(request, service.config.max_body_bytes), TokenizeRequest, REFUSED_TEXT)
        service.model.check_name(body.model)
        tokenizer = service.model.need_tokenizer()
        if (body.prompt is None) == (body.messages is None):
            raise invalid("prompt: give either prompt or messages", "prompt")
        if body.prompt is not None:
            with_special = body.add_special_tokens is not False
            ids = await service.model.encode(body.prompt, "prompt", add_special_tokens=with_special)
        else:
            if not body.messages:
                raise invalid("messages: is an empty list", "messages")
            ids = await conversation_prompt(service.model, body.messages, body)
        strings = list(map(tokenizer.token, ids)) if body.return_token_strs else None
        return json_response(
            Tokenized(count=len(ids), max_model_len=service.max_model_len or None, tokens=ids, token_strs=strings)
        )

    async def detokenize(self, request: Request) -> Response:
        """The text of tokens, special ones left out as in every output."""
        service = self._service
        body = decode(await read_body(request, service.config.max_body_bytes), DetokenizeRequest, {})
        service.model.check_name(body.model)
        tokenizer = service.model.need_tokenizer()
        return json_response(Detokenized(await service.model.in_thread(lambda: tokenizer.decode(body.tokens))))
