"""POST /tokenize and /detokenize."""

from __future__ import annotations

from starlette.requests import Request

from distkv.gateway.api.growing_json import JsonResponse
from distkv.gateway.api.service import Service
from distkv.gateway.operations.clients import client_of


class Tokenizing:
    """The endpoints."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def tokenize(self, request: Request) -> JsonResponse:
        """The tokens of a prompt or of a conversation, as the cluster would get them."""
        service = self._service
        async with service.bodies.complete(request) as parts:
            client = client_of(request.scope)
            written = await service.in_place(
                request, lambda: service.readers.tokenize(parts, service.max_model_len or None, client)
            )
        return JsonResponse(written.parts)

    async def detokenize(self, request: Request) -> JsonResponse:
        """The text of tokens, special ones left out as in every output."""
        service = self._service
        async with service.bodies.complete(request) as parts:
            client = client_of(request.scope)
            written = await service.in_place(request, lambda: service.readers.detokenize(parts, client))
        return JsonResponse(written.parts)
