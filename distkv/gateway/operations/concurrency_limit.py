"""Who may come in: how many requests run, and how the gateway leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from distkv.gateway.schema.errors import ApiError, unavailable


class Gate:
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
