"""How much all responses hold that are not streamed, until they are sent."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from distkv.gateway.schema.errors import ApiError, unavailable

ROOM_BYTES = 512 * 2**20
FREE_BYTES = 64 * 2**10
"""So much of a response is not counted: short ones always find room."""


class HeldResponses:
    """Those of all clients. When the room for them is full, the largest of the client that holds most is given up."""

    def __init__(self) -> None:
        self._held_bytes = 0
        self._all: dict[HeldResponse, None] = {}

    @asynccontextmanager
    async def one(self, client: str) -> AsyncIterator[HeldResponse]:
        """A response of this client, which holds nothing any more when the block ends. Raises ApiError 503 in it when
        it is given up."""
        response = HeldResponse(client)
        self._all[response] = None
        try:
            async with response.deadline:
                yield response
        except TimeoutError:
            if not response.is_given_up:
                raise
            raise _full() from None
        finally:
            del self._all[response]
            self._held_bytes -= response.counted_bytes

    def grown(self, response: HeldResponse, size_bytes: int) -> None:
        """It has so many bytes now. Costs the same however many there are, unless one is given up."""
        if response.is_given_up:
            return
        self._held_bytes -= response.counted_bytes
        response.counted_bytes = max(0, size_bytes - FREE_BYTES)
        self._held_bytes += response.counted_bytes
        while self._held_bytes > ROOM_BYTES:
            self._held_bytes -= self._largest().give_up()

    def _largest(self) -> HeldResponse:
        held: Counter[str] = Counter()
        for one in self._all:
            held[one.client] += one.counted_bytes
        return max(self._all, key=lambda one: (held[one.client], one.counted_bytes))


class HeldResponse:
    """counted_bytes: what it holds beyond FREE_BYTES. deadline: passes when it is given up."""

    def __init__(self, client: str) -> None:
        self.client = client
        self.counted_bytes = 0
        self.is_given_up = False
        self.deadline = asyncio.timeout(None)

    def give_up(self) -> int:
        """End it, for others to have its room; the bytes that it held."""
        held, self.counted_bytes, self.is_given_up = self.counted_bytes, 0, True
        self.deadline.reschedule(asyncio.get_running_loop().time())
        return held


def _full() -> ApiError:
    problem = "responses that are not streamed hold too much at the same time; request fewer logprobs, or a stream"
    return unavailable(problem, "responses_full")
