"""Places for so many at a time, where those that wait do not all wait for the large ones among them, or for those of
one client."""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_left, insort
from collections.abc import AsyncIterator, Hashable


class Places:
    """`count` of them. When one comes free, the smallest of those that wait has it, and the next time the one that has
    waited longest.

    So a small one waits for few large ones, however many there are, and a large one for twice the work before it at
    most.
    """

    def __init__(self, count: int) -> None:
        self._count = self._free = count
        self._waiting: dict[int, tuple[int, asyncio.Future[None]]] = {}  # in the order in which they came
        self._by_size: list[tuple[int, int]] = []
        self._last_number = 0
        self._oldest_is_next = False

    @property
    def is_unused(self) -> bool:
        """Whether all are free, and none is about to be held."""
        return self._free == self._count

    @contextlib.asynccontextmanager
    async def take(self, size: int) -> AsyncIterator[None]:
        """Wait for a place, and hold it within. size: how long it will be held, in any unit."""
        await self._wait(size)
        try:
            yield
        finally:
            self._give_back()

    async def _wait(self, size: int) -> None:
        if self._free:
            self._free -= 1
            return
        self._last_number = number = self._last_number + 1
        turn = asyncio.get_running_loop().create_future()
        self._waiting[number] = size, turn
        insort(self._by_size, (size, number))
        try:
            await turn
        except asyncio.CancelledError:
            if number in self._waiting:
                self._forget(number)
            elif not turn.cancelled():  # it has come just now
                self._give_back()
            raise

    def _give_back(self) -> None:
        while self._waiting:
            number = next(iter(self._waiting)) if self._oldest_is_next else self._by_size[0][1]
            turn = self._forget(number)
            if not turn.done():
                self._oldest_is_next = not self._oldest_is_next
                turn.set_result(None)
                return
        self._free += 1

    def _forget(self, number: int) -> asyncio.Future[None]:
        size, turn = self._waiting.pop(number)
        del self._by_size[bisect_left(self._by_size, (size, number))]
        return turn


class SharedPlaces:
    """`count` places for many clients, all of which one may have while nobody else wants some. However many of one
    wait, another waits behind `count` of them at most: the others wait for these, as for `Places`.

    smallest_first: so do those for which nobody of their own client has to be waited for; else they have the places in
    the order in which they came to that.
    """

    def __init__(self, count: int = 1, *, smallest_first: bool = False) -> None:
        self._count, self._smallest_first = count, smallest_first
        self._places = Places(count)
        self._of: dict[Hashable, Places] = {}

    @contextlib.asynccontextmanager
    async def take(self, client: Hashable, size: int) -> AsyncIterator[None]:
        """As `Places.take`."""
        own = self._of.setdefault(client, Places(self._count))
        try:
            async with own.take(size), self._places.take(size if self._smallest_first else 0):
                yield
        finally:
            if own.is_unused and self._of.get(client) is own:
                del self._of[client]
