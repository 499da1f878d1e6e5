"""POST /tokenize and /detokenize."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from starlette.requests import Request
from starlette.types import ASGIApp

from distkv.gateway.api.response import send_whole
from distkv.gateway.api.service import Service
from distkv.gateway.operations.clients import client_of
from distkv.gateway.operations.held_responses import HeldResponse
from distkv.gateway.prompting.reading import Written


class Tokenizing:
    """The endpoints."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def tokenize(self, request: Request) -> ASGIApp:
        """The tokens of a prompt or of a conversation, as the cluster would get them."""
        service = self._service
        async with service.bodies.complete(request) as parts:
            client = client_of(request.scope)
            written = await service.in_place(
                request, lambda: service.readers.tokenize(parts, service.max_model_len or None, client)
            )
        return _response(service, client, written)

    async def detokenize(self, request: Request) -> ASGIApp:
        """The text of tokens, special ones left out as in every output."""
        service = self._service
        async with service.bodies.complete(request) as parts:
            client = client_of(request.scope)
            written = await service.in_place(request, lambda: service.readers.detokenize(parts, client))
        return _response(service, client, written)


def _response(service: Service, client: str, written: Written) -> ASGIApp:
    async def make(_: HeldResponse) -> Sequence[bytes]:
        parts = list(written.parts)
        written.parts.clear()  # or they would stay here when the response is given up
        return parts

    return partial(send_whole, service, client, make)
