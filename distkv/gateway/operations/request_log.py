"""Around every HTTP request: its id, its log line, its metrics."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from distkv.gateway.metrics.request_metrics import Metrics
from distkv.gateway.operations.paths import QUIET_PATHS
from distkv.gateway.schema.errors import internal
from distkv.log.lines import about

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
MAX_REQUEST_ID = 128
_KEY = "distkv.log_entry"


@dataclass
class LogEntry:
    """What the log line of one HTTP request will say. request_id: the client's or ours. Tokens are counted as they
    come."""

    request_id: str
    prompt_tokens: int = 0
    generation_tokens: int = 0


def entry_of(scope: Scope) -> LogEntry:
    """The entry of the request being handled."""
    found = scope[_KEY]
    assert isinstance(found, LogEntry)
    return found


def request_id_from(header: str | None) -> str:
    """The id a client gave, if it is 1 to 128 printable ASCII characters without spaces; else a new one."""
    if header and len(header) <= MAX_REQUEST_ID and all("!" <= character <= "~" for character in header):
        return header
    return secrets.token_hex(16)


class RequestLog:
    """Outermost: gives every request an id, and every response that id, a log line and a place in the metrics.

    paths: of the routes, which may end with a parameter that is a path.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Iterable[str]) -> None:
        self._app, self._metrics, self._paths = app, metrics, frozenset(paths)
        self._templates = {
            path.partition("{")[0]: path.replace(":path}", "}") for path in self._paths if path.endswith(":path}")
        }
        self._log = structlog.get_logger()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start_s = time.perf_counter()
        entry = LogEntry(request_id_from(Headers(scope=scope).get("x-request-id")))
        scope[_KEY] = entry
        status = 0

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = entry.request_id
            await send(message)

        with about(request_id=entry.request_id):
            try:
                await self._app(scope, receive, send_marked)
            except Exception:
                self._log.error("request failed unexpectedly", exc_info=True)
                if not status:
                    await internal().response()(scope, receive, send_marked)
            finally:
                self._note(scope, status, time.perf_counter() - start_s, entry)

    def _note(self, scope: Scope, status: int, duration_s: float, entry: LogEntry) -> None:
        method, path = scope["method"], scope["path"]
        log_line = self._log.debug if path in QUIET_PATHS else self._log.info
        log_line(
            "http request",
            method=method,
            path=path[:200],
            status=status,
            duration_s=round(duration_s, 6),
            prompt_tokens=entry.prompt_tokens,
            generation_tokens=entry.generation_tokens,
        )
        labels = (method if method in METHODS else "other", self._template(path))
        self._metrics.http_requests.labels(*labels, str(status)).inc()
        self._metrics.http_request_duration_s.labels(*labels).observe(duration_s)

    def _template(self, path: str) -> str:
        if path in self._paths:
            return path
        return next((found for begins, found in self._templates.items() if path.startswith(begins)), "unknown")
