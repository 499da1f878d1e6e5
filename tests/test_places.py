"""Places: who is next, and that none is lost, whoever leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from distkv.places import Places, SharedPlaces


class Crowd:
    """Tasks that each hold a place until they are let go."""

    def __init__(self, count: int) -> None:
        self.places = Places(count)
        self.began: list[int] = []
        self._ends: dict[int, asyncio.Event] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def come(self, *sizes: int) -> None:
        for size in sizes:
            self._ends[size] = asyncio.Event()
            self._tasks[size] = asyncio.create_task(self._hold(size))
            await asyncio.sleep(0)

    async def end(self, size: int) -> None:
        self._ends[size].set()
        await asyncio.gather(self._tasks[size], return_exceptions=True)
        await asyncio.sleep(0)

    async def leave(self, size: int) -> None:
        self._tasks[size].cancel()
        await asyncio.gather(self._tasks[size], return_exceptions=True)
        await asyncio.sleep(0)

    async def end_all(self) -> Sequence[int]:
        """In the order in which they began."""
        for index in range(len(self._tasks)):
            if index < len(self.began):
                await self.end(self.began[index])
        return self.began

    async def _hold(self, size: int) -> None:
        async with self.places.take(size):
            self.began.append(size)
            await self._ends[size].wait()


async def test_the_smallest_and_the_one_that_has_waited_longest_in_turn() -> None:
    crowd = Crowd(1)
    await crowd.come(50, 90, 80, 70, 3, 2, 1)
    assert crowd.began == [50]
    assert await crowd.end_all() == [50, 1, 90, 2, 80, 3, 70]


async def test_as_many_as_there_are_places() -> None:
    crowd = Crowd(2)
    await crowd.come(5, 6, 7, 8)
    assert crowd.began == [5, 6]
    await crowd.end(6)
    assert crowd.began == [5, 6, 7]
    await crowd.end_all()


async def test_who_leaves_keeps_no_place() -> None:
    crowd = Crowd(1)
    await crowd.come(5, 6, 7, 8)
    await crowd.leave(6)
    await crowd.leave(5)
    assert crowd.began == [5, 7]
    await crowd.leave(8)
    await crowd.leave(7)
    await crowd.come(9)
    assert crowd.began == [5, 7, 9]
    await crowd.end_all()


async def test_one_that_leaves_as_its_place_comes_free_gives_it_to_the_next() -> None:
    for is_first in (True, False):
        crowd = Crowd(1)
        await crowd.come(5, 6, 7)
        first, second = (6, 5) if is_first else (5, 6)
        crowd._tasks[first].cancel()
        crowd._tasks[second].cancel()
        await asyncio.gather(crowd._tasks[5], crowd._tasks[6], return_exceptions=True)
        await asyncio.sleep(0)
        assert crowd.began == [5, 7]
        assert await crowd.end_all() == [5, 7]
        await crowd.come(8)
        assert await crowd.end_all() == [5, 7, 8]


async def test_of_a_place_that_is_shared_each_waits_for_one_of_every_other_client() -> None:
    place, began, go_on = SharedPlaces(), [], asyncio.Semaphore(0)

    async def hold(client: str, size: int) -> None:
        async with place.take(client, size):
            began.append((client, size))
            await go_on.acquire()

    tasks: list[asyncio.Task[None]] = []
    for client, size in (("a", 5), ("a", 9), ("a", 1), ("a", 4), ("b", 7), ("c", 8), ("b", 2)):
        tasks.append(asyncio.create_task(hold(client, size)))
        await asyncio.sleep(0)
    tasks[1].cancel()
    for _ in range(6):
        go_on.release()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert began == [("a", 5), ("b", 7), ("c", 8), ("a", 1), ("b", 2), ("a", 4)]
    assert not place._of, "clients are forgotten"


async def test_of_a_place_that_is_shared_by_size_each_client_has_one_that_may_be_next() -> None:
    """As of `Places`, the smallest and the oldest in turn."""
    place, began, go_on = SharedPlaces(smallest_first=True), [], asyncio.Semaphore(0)

    async def hold(client: str, size: int) -> None:
        async with place.take(client, size):
            began.append((client, size))
            await go_on.acquire()

    tasks: list[asyncio.Task[None]] = []
    for client, size in (("a", 50), ("a", 1), ("a", 2), ("b", 90), ("c", 80), ("d", 30)):
        tasks.append(asyncio.create_task(hold(client, size)))
        await asyncio.sleep(0)
    for _ in tasks:
        go_on.release()
    await asyncio.gather(*tasks)
    assert began == [("a", 50), ("d", 30), ("b", 90), ("a", 1), ("c", 80), ("a", 2)]
    assert not place._of, "clients are forgotten"


async def test_of_several_places_that_are_shared_a_client_may_have_all() -> None:
    places, began, go_on = SharedPlaces(2, smallest_first=True), [], asyncio.Semaphore(0)

    async def hold(client: str, size: int) -> None:
        async with places.take(client, size):
            began.append((client, size))
            await go_on.acquire()

    tasks: list[asyncio.Task[None]] = []
    for client, size in (("a", 5), ("a", 9), ("a", 1), ("a", 4), ("b", 70), ("c", 80)):
        tasks.append(asyncio.create_task(hold(client, size)))
        await asyncio.sleep(0)
    assert began == [("a", 5), ("a", 9)]
    for _ in began:
        go_on.release()
    await asyncio.gather(*tasks[:2])
    await asyncio.sleep(0)
    assert began[2:] == [("b", 70), ("c", 80)]
    for _ in tasks[2:]:
        go_on.release()
    await asyncio.gather(*tasks)
    assert not places._of, "clients are forgotten"
