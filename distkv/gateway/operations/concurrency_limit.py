"""How many requests run at the same time, and how that becomes none when the gateway drains."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

from distkv.gateway.operations.paths import OPEN_PATHS
from distkv.gateway.schema.errors import ApiError, invalid, unavailable


class ConcurrencyLimit:
    """Counts requests to the cluster, of which an HTTP request may be several. Draining has two steps: `unready` fails
    the health check, `close` refuses new requests."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.running = 0
        self.is_ready = True
        self.is_open = True
        self._empty = asyncio.Event()
        self._empty.set()

    def check_open(self) -> None:
        """Raise ApiError 503 once closed."""
        if not self.is_open:
            raise unavailable("the gateway is shutting down", "draining", close=True)

    @contextmanager
    def places(self, count: int = 1) -> Iterator[None]:
        """Held while so many requests run; all of them are there at once, or none is taken. Raises ApiError: 503 once
        closed, 429 when too few are free, 400 when there never are so many."""
        self.check_open()
        if count > self.most:
            raise invalid(
                f"n: the request needs {count} outputs at the same time, the gateway makes {self.most}",
                "n",
                "too_many_outputs",
            )
        if self.running + count > self.most:
            problem = f"{self.running} requests are running already, the limit is {self.most}"
            raise ApiError(429, problem, code="too_many_requests")
        self.running += count
        self._empty.clear()
        try:
            yield
        finally:
            self.running -= count
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


class Gate:
    """An ASGI application that takes no requests once the limit is closed; OPEN_PATHS still work. Who takes places is
    for the endpoints to say, when a request is complete: one that is half sent holds none."""

    def __init__(self, app: ASGIApp, limit: ConcurrencyLimit) -> None:
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        try:
            if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
                self._limit.check_open()
        except ApiError as refused:
            await refused.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)
