"""How the bodies of requests come in: within a size, a time and a rate, and a bound on what is held of all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from starlette.requests import ClientDisconnect, Request

from distkv.gateway.schema.errors import ApiError, ClientDisconnected

READ_S = 60.0
GRACE_S = 10.0
MIN_BYTES_PER_S = 4096
"""After GRACE_S a body that came slower than this on the whole is given up."""
FREE_BYTES = 64 * 2**10
"""So much of a body is not counted: short ones always find room."""
MAX_HELD = 4
"""Of the largest bodies, so much room is there for all that are on their way."""


class Bodies:
    """Reads bodies of at most `limit_bytes`. When the room for all is full, the one longest on its way is given up."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._room_bytes = MAX_HELD * limit_bytes
        self._held_bytes = 0
        self._arriving: dict[_Arriving, None] = {}

    @asynccontextmanager
    async def complete(self, request: Request) -> AsyncIterator[list[bytes]]:
        """The whole body in the parts that it came in, for to join a long one takes milliseconds; it holds room until
        the block ends. Raises ApiError: 413 as soon as it is over the limit, 408 if it is slow, 503 if it made room for
        others."""
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and len(announced) < 20 and int(announced) > self._limit_bytes:
            raise self._too_large()
        with self._arrival() as body:
            parts: list[bytes] = []
            try:
                async with body.deadline:
                    async for part in request.stream():
                        if body.size_bytes + len(part) > self._limit_bytes:
                            raise self._too_large()
                        self._take(body, len(part))
                        parts.append(part)
            except TimeoutError:
                raise body.given_up() from None
            except ClientDisconnect:
                raise ClientDisconnected from None
            body.is_complete = True
            yield parts

    @contextmanager
    def _arrival(self) -> Iterator[_Arriving]:
        body = _Arriving(asyncio.get_running_loop().time())
        self._arriving[body] = None
        try:
            yield body
        finally:
            self._arriving.pop(body, None)
            self._held_bytes -= body.counted_bytes

    def _take(self, body: _Arriving, size_bytes: int) -> None:
        self._held_bytes -= body.counted_bytes
        body.take(size_bytes)
        self._held_bytes += body.counted_bytes
        while self._held_bytes > self._room_bytes:
            # The newest is one of these at least: its bytes are why there is too little.
            oldest = next(one for one in self._arriving if one.counted_bytes and not one.is_complete)
            del self._arriving[oldest]
            self._held_bytes -= oldest.make_room()

    def _too_large(self) -> ApiError:
        limit = self._limit_bytes
        return ApiError(413, f"the body is over the limit of {limit} bytes", code="body_too_large", close=True)


class _Arriving:
    """A body on its way. deadline: moves on with what comes, READ_S at most."""

    def __init__(self, now_s: float) -> None:
        self.size_bytes = self.counted_bytes = 0
        self.is_complete = False
        self._began_s = now_s
        self._made_room = False
        self.deadline = asyncio.timeout_at(now_s + GRACE_S)

    def take(self, size_bytes: int) -> None:
        """More of it came."""
        self.size_bytes += size_bytes
        if self._made_room:
            return
        self.counted_bytes = max(0, self.size_bytes - FREE_BYTES)
        self.deadline.reschedule(self._began_s + min(READ_S, GRACE_S + self.size_bytes / MIN_BYTES_PER_S))

    def make_room(self) -> int:
        """Give it up for others; the bytes that it held."""
        held, self.counted_bytes, self._made_room = self.counted_bytes, 0, True
        if not self.deadline.expired():  # else it is given up already, and does not know yet
            self.deadline.reschedule(self._began_s)
        return held

    def given_up(self) -> ApiError:
        """Why it was."""
        if self._made_room:
            return ApiError(503, "too much is being sent at the same time", code="bodies_full", close=True)
        return ApiError(
            408,
            f"the body did not come within {READ_S:.0f} s, nor at {MIN_BYTES_PER_S} bytes a second after "
            f"{GRACE_S:.0f} s",
            code="body_too_slow",
            close=True,
        )
