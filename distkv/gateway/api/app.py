"""The gateway as an ASGI application."""

from __future__ import annotations

import difflib

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from distkv.errors import DistKVError
from distkv.gateway.api.chat import Chats
from distkv.gateway.api.completions import Completions
from distkv.gateway.api.info import Info
from distkv.gateway.api.service import Service
from distkv.gateway.api.tokenization import Tokenizing
from distkv.gateway.operations.auth import Auth
from distkv.gateway.operations.concurrency_limit import Gate
from distkv.gateway.operations.cross_origin import for_web_pages
from distkv.gateway.operations.request_log import RequestLog
from distkv.gateway.schema.errors import ApiError, internal

MAX_PATH = 200
"""So much of a path is shown."""
NOT_IMPLEMENTED = ("/v1/responses", "/v1/embeddings")


def make_app(service: Service) -> ASGIApp:
    """All endpoints, with what happens around them."""
    info, tokenizing = Info(service), Tokenizing(service)
    routes = [
        Route("/health", info.health),
        Route("/ping", info.health, methods=["GET", "POST"]),
        Route("/live", info.live),
        Route("/version", info.version),
        Route("/metrics", info.metrics),
        Route("/openapi.json", info.openapi),
        Route("/v1/models", info.models),
        Route("/v1/models/{model_id:path}", info.model),
        Route("/v1/completions", Completions(service).create, methods=["POST"]),
        Route("/v1/chat/completions", Chats(service).create, methods=["POST"]),
        *(Route(path, info.not_implemented, methods=["POST"]) for path in NOT_IMPLEMENTED),
        Route("/explain/{request_id:path}", info.explain),
        Route("/tokenizer_info", info.tokenizer_info),
        Route("/tokenize", tokenizing.tokenize, methods=["POST"]),
        Route("/detokenize", tokenizing.detokenize, methods=["POST"]),
    ]
    paths = [route.path for route in routes]

    # Coroutines: others would take a thread each, and the first one what makes threads, at 30 ms.
    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path, message, code, headers = request.url.path[:MAX_PATH], error.detail, None, dict(error.headers or {})
        if error.status_code == 404:
            close = difflib.get_close_matches(path, paths, n=1, cutoff=0.75)
            hint = f"did you mean {close[0]}?" if close else "GET /openapi.json has all there is"
            message, code = f"there is no {path} here; {hint}", "not_found"
        elif error.status_code == 405:
            # Starlette names them in any order.
            headers["Allow"] = ", ".join(sorted(headers["Allow"].split(", ")))
            message, code = f"{path} takes {headers['Allow']}, not {request.method}", "method_not_allowed"
        response = ApiError(error.status_code, message, code=code).response()
        response.headers.update(headers)
        return response

    async def on_error(request: Request, error: Exception) -> Response:
        return service.explain(error).response()

    async def on_bug(request: Request, error: Exception) -> Response:
        # Starlette raises it again after this response, and RequestLog logs it.
        return internal().response()

    app = Starlette(
        routes=routes,
        exception_handlers={
            HTTPException: on_http_error,
            ApiError: on_error,
            DistKVError: on_error,
            Exception: on_bug,
        },
    )
    app.router.redirect_slashes = False
    guarded = Auth(Gate(app, service.limit), service.config.api_key)
    shared = for_web_pages(guarded, service.config.allowed_origins)
    return RequestLog(shared, service.metrics, paths)
