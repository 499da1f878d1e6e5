"""What happens around every HTTP request: its id, its log line, its metrics, and who may come in."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from distkv.gateway.operations.concurrency_limit import Gate
from distkv.gateway.operations.metrics import Metrics
from distkv.gateway.operations.request_log import RequestFacts, attach, request_id_from
from distkv.gateway.schema.errors import ApiError, internal
from distkv.log import about

OPEN_PATHS = frozenset({"/health", "/live", "/version", "/metrics", "/openapi.json"})
"""No key is asked for here, and a gateway that drains still answers."""
QUIET_PATHS = frozenset({"/health", "/live", "/metrics"})
"""Asked every few seconds by machines, so their lines are for debugging."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Front:
    """Outermost: gives every request an id, and every answer that id, a log line and a place in the metrics."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: frozenset[str]) -> None:
        self._app, self._metrics, self._paths = app, metrics, paths
        self._log = structlog.get_logger()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start_s = time.perf_counter()
        facts = RequestFacts(request_id_from(Headers(scope=scope).get("x-request-id")))
        attach(scope, facts)
        status = 0

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = facts.request_id
            await send(message)

        with about(request_id=facts.request_id):
            try:
                await self._app(scope, receive, send_marked)
            except Exception:
                self._log.error("request failed unexpectedly", exc_info=True)
                if not status:
                    await internal().response()(scope, receive, send_marked)
            finally:
                self._note(scope, status, time.perf_counter() - start_s, facts)

    def _note(self, scope: Scope, status: int, duration_s: float, facts: RequestFacts) -> None:
        method, path = scope["method"], scope["path"]
        write = self._log.debug if path in QUIET_PATHS else self._log.info
        write(
            "http request",
            method=method,
            path=path[:200],
            status=status,
            duration_s=round(duration_s, 6),
            prompt_tokens=facts.prompt_tokens,
            generation_tokens=facts.generation_tokens,
        )
        labels = (method if method in METHODS else "other", self._template(path))
        self._metrics.http_requests.labels(*labels, str(status)).inc()
        self._metrics.http_request_duration_s.labels(*labels).observe(duration_s)

    def _template(self, path: str) -> str:
        if path in self._paths:
            return path
        return "/v1/models/{model_id}" if path.startswith("/v1/models/") else "unknown"


class Guard:
    """Asks for a key, and lets in no more requests than there are places."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...], gate: Gate) -> None:
        self._app, self._gate = app, gate
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        try:
            self._check_key(Headers(scope=scope))
            with self._gate.place():
                await self._app(scope, receive, send)
        except ApiError as refused:
            await refused.response()(scope, receive, send)

    def _check_key(self, headers: Mapping[str, str]) -> None:
        if not self._keys:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        # All keys are compared, so that time tells nothing about them.
        matches = [secrets.compare_digest(given.strip().encode(), key) for key in self._keys]
        if scheme.lower() != "bearer" or not any(matches):
            problem = "the API key is wrong" if given else "no API key was given"
            raise ApiError(401, f"{problem}; send 'Authorization: Bearer KEY'", code="invalid_api_key")
