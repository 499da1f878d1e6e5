"""How many requests run at the same time, whose they are, and how that becomes none when the gateway drains."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Receive, Scope, Send

from distkv.gateway.operations.client_queue import ClientQueue
from distkv.gateway.operations.paths import OPEN_PATHS
from distkv.gateway.schema.errors import ApiError, invalid, unavailable

WAIT_S = 10.0
"""A request of a client with less than its share waits so long for a place."""


@dataclass(eq=False)
class _Wanted:
    """Places that a request waits for."""

    count: int
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class ConcurrencyLimit:
    """Counts requests to the cluster, of which an HTTP request may be several, in all and for each client. Draining has
    two steps: `unready` fails the health check, `close` refuses new requests.

    While places are free and nobody waits, anybody may have them. Otherwise a client that has its share, as many as
    each would have if all that want some had the same number, is refused; one that has less, or none, waits, and places
    go to those that wait by turns between clients: to nobody before one whose turn it is and who needs more. Cost of a
    request: constant, whatever the number of clients.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.running = 0
        self.is_ready = True
        self.is_open = True
        self._of: Counter[str] = Counter()
        """Places that each client has or waits for; nobody who has none."""
        self._waiting: ClientQueue[_Wanted] = ClientQueue()
        self._empty = asyncio.Event()
        self._empty.set()

    def check_open(self) -> None:
        """Raise ApiError 503 once closed."""
        if not self.is_open:
            raise _draining()

    @property
    def waiting(self) -> int:
        """Requests that wait for places."""
        return len(self._waiting)

    @asynccontextmanager
    async def places(self, client: str = "", count: int = 1) -> AsyncIterator[None]:
        """Held while so many requests of a client run; all of them are there at once, or none is taken. Raises
        ApiError: 503 once closed, 429 when too few are free and it has its share, or still after WAIT_S, 400 when there
        never are so many."""
        self.check_open()
        if count > self.most:
            raise invalid(
                f"n: the request needs {count} outputs at the same time, the gateway makes {self.most}",
                "n",
                "too_many_outputs",
            )
        has, is_free = self._of[client], self.running + count <= self.most and not self._waiting
        if not is_free and has and has + count > self._share(client):
            raise self._refused()
        self._of[client] += count
        try:
            if is_free:
                self._begin(count)
            else:
                await self._wait(client, _Wanted(count))
            try:
                yield
            finally:
                self._end(count)
        finally:
            self._of[client] -= count
            if not self._of[client]:
                del self._of[client]
            self._give_out()

    def unready(self) -> None:
        """From now on the health check fails."""
        self.is_ready = False

    def close(self) -> None:
        """From now on new requests are refused, those that wait too."""
        self.is_ready = self.is_open = False
        while self._waiting:
            _, wanted = self._waiting.take()
            if not wanted.turn.done():
                wanted.turn.set_exception(_draining())

    async def empty(self, timeout_s: float) -> bool:
        """Wait until no request runs; False if some still do after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def _share(self, client: str) -> int:
        return max(1, self.most // (len(self._of) + (client not in self._of)))

    def _refused(self) -> ApiError:
        problem = f"{self.running} requests are running already, the limit is {self.most}"
        return ApiError(429, problem, code="too_many_requests")

    def _begin(self, count: int) -> None:
        self.running += count
        self._empty.clear()

    def _end(self, count: int) -> None:
        self.running -= count
        if not self.running:
            self._empty.set()

    async def _wait(self, client: str, wanted: _Wanted) -> None:
        self._waiting.put(client, wanted)
        try:
            async with asyncio.timeout(WAIT_S):
                await wanted.turn
        except BaseException as error:
            self._waiting.remove(client, wanted)
            turn = wanted.turn
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._end(wanted.count)  # they have come just now
            if isinstance(error, TimeoutError):
                raise self._refused() from None
            raise

    def _give_out(self) -> None:
        while self._waiting and self.running + self._waiting.first()[1].count <= self.most:
            _, wanted = self._waiting.take()
            if not wanted.turn.done():
                self._begin(wanted.count)
                wanted.turn.set_result(None)


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


def _draining() -> ApiError:
    return unavailable("the gateway is shutting down", "draining", close=True)
