"""How many requests run at the same time, and how that becomes none when the gateway drains."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

from distkv.gateway.operations.paths import OPEN_PATHS
from distkv.gateway.schema.errors import ApiError, unavailable


class ConcurrencyLimit:
    """Counts requests. Draining has two steps: `unready` fails the health check, `close` refuses new requests."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.running = 0
        self.is_ready = True
        self.is_open = True
        self._empty = asyncio.Event()
        self._empty.set()

    @contextmanager
    def place(self) -> Iterator[None]:
        """Held by a request while it runs. Raises ApiError: 503 once closed, 429 when all places are taken."""
        if not self.is_open:
            raise unavailable("the gateway is shutting down", "draining", close=True)
        if self.running >= self.most:
            raise ApiError(429, f"{self.most} requests are running already", code="too_many_requests")
        self.running += 1
        self._empty.clear()
        try:
            yield
        finally:
            self.running -= 1
            if not self.running:
                self._empty.set()

    def unready(self) -> None:
        """From now on the health check fails."""
        self.is_ready = False

    def close(self) -> None:
        """From now on new requests are refused."""
        self.is_ready = self.is_open = False

    async def empty(self, timeout_s: float) -> bool:
        """Wait until no request runs; False if some still do after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True


class Limited:
    """An ASGI application in which no more requests run than the limit has places; OPEN_PATHS need none."""

    def __init__(self, app: ASGIApp, limit: ConcurrencyLimit) -> None:
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        try:
            with self._limit.place():
                await self._app(scope, receive, send)
        except ApiError as refused:
            await refused.response()(scope, receive, send)
