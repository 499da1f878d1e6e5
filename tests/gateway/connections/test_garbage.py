"""Garbage is looked for while nothing runs."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from distkv.gateway.connections import garbage
from distkv.gateway.operations.concurrency_limit import ConcurrencyLimit
from tests.waiting import until


class Circle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


async def test_it_waits_until_no_request_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "WORTH_IT", 1)
    limit, looks = ConcurrencyLimit(1), 0
    count = gc.get_count

    def look() -> tuple[int, int, int]:
        nonlocal looks
        looks += 1
        return count()

    monkeypatch.setattr(gc, "get_count", look)
    collecting = asyncio.create_task(garbage.collect_when_idle(limit, 0.0))
    async with limit.places():
        await asyncio.sleep(0)
        circle = weakref.ref(Circle())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not looks and circle() is not None
    await until(lambda: circle() is None)
    collecting.cancel()
    await asyncio.gather(collecting, return_exceptions=True)
    assert looks


async def test_thousands_of_streams_are_not_looked_at() -> None:
    collecting = asyncio.create_task(garbage.collect_when_idle(ConcurrencyLimit(1), 60.0))
    await asyncio.sleep(0)
    looked: list[str] = []

    def note(phase: str, _facts: dict[str, int]) -> None:
        looked.append(phase)

    gc.callbacks.append(note)
    try:
        streams = [[index] for index in range(200_000)]
    finally:
        gc.callbacks.remove(note)
    collecting.cancel()
    await asyncio.gather(collecting, return_exceptions=True)
    assert not looked and len(streams) == 200_000
