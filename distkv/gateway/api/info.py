"""Endpoints about the gateway, the model and the cluster."""

from __future__ import annotations

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from distkv import __version__
from distkv.gateway.api.service import Service
from distkv.gateway.metrics.metrics_text import MetricsText
from distkv.gateway.schema.errors import RETRY_AFTER_S, final
from distkv.gateway.schema.openapi import document
from distkv.gateway.schema.responses import Health, ModelCard, ModelList, RequestExplanation, Version, json_response


class Info:
    """GET endpoints."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._started_s = int(time.time())
        self._metrics = MetricsText(service.metrics.registry)
        self._tokenizer_info = msgspec.json.encode(service.model.tokenizer_info)
        self._document = msgspec.json.encode(document(asks_for_key=bool(service.config.api_key)))

    async def health(self, request: Request) -> Response:
        """200 while requests can be served, else 503."""
        if not self._service.limit.is_ready:
            return self._unready("draining")
        if why := self._service.cluster.unready:
            return self._unready(why)
        return json_response(Health("ok"))

    async def live(self, request: Request) -> Response:
        """200 while the process lives."""
        return json_response(Health("ok"))

    async def tokenizer_info(self, request: Request) -> Response:
        """The tokenizer's configuration."""
        self._service.model.need_tokenizer()
        return Response(self._tokenizer_info, media_type="application/json")

    async def version(self, request: Request) -> Response:
        """The version of distkv."""
        return json_response(Version(__version__))

    async def models(self, request: Request) -> Response:
        """The names of the model."""
        return json_response(ModelList(data=[self._card(name) for name in self._service.model.names]))

    async def model(self, request: Request) -> Response:
        """One name of the model."""
        name = request.path_params["model_id"]
        self._service.model.check_name(name)
        return json_response(self._card(name))

    async def explain(self, request: Request) -> Response:
        """Why the KV of a request lies where it lies."""
        explanation = await self._service.cluster.explain(request.path_params["request_id"])
        one = explanation.explained
        return json_response(RequestExplanation(one.request_id, one.instance_id, one.state, explanation.sentences()))

    async def metrics(self, request: Request) -> Response:
        """Prometheus text, or OpenMetrics if the scraper accepts it."""
        await self._service.cluster.statuses()
        accepted = request.headers.get("accept", "")
        text, kind = await self._metrics.latest(is_open="application/openmetrics-text" in accepted)
        return Response(text, headers={"content-type": kind})

    async def not_implemented(self, request: Request) -> Response:
        """501: OpenAI has this endpoint."""
        message = (
            f"{request.url.path} is not implemented by this server; it has /v1/completions and /v1/chat/completions"
        )
        return final(501, message, "not_implemented").response()

    async def openapi(self, request: Request) -> Response:
        """The OpenAPI document."""
        return Response(self._document, media_type="application/json")

    def _card(self, name: str) -> ModelCard:
        model = self._service.model
        return ModelCard(
            id=name, created=self._started_s, root=model.names[0], max_model_len=self._service.max_model_len or None
        )

    def _unready(self, why: str) -> Response:
        body = msgspec.json.encode(Health(why))
        return Response(body, 503, {"retry-after": str(RETRY_AFTER_S)}, "application/json")
