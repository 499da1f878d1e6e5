"""Bodies on their way: how slow one may be, and what all of them may hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import Request

from distkv.gateway.connections import bodies as module
from distkv.gateway.connections.bodies import Bodies
from distkv.gateway.schema.errors import ApiError
from tests.gateway.harness import until

LIMIT = 2**20


class Sender:
    """One request whose body comes as the test sends it."""

    def __init__(self, bodies: Bodies) -> None:
        self.parts: asyncio.Queue[tuple[bytes, bool]] = asyncio.Queue()
        self.let_go = asyncio.Event()
        self.arrived = asyncio.Event()
        self.task = asyncio.create_task(self._read(bodies))

    def send(self, part: bytes, *, more: bool = True) -> None:
        self.parts.put_nowait((part, more))

    async def _receive(self) -> dict[str, Any]:
        part, more = await self.parts.get()
        return {"type": "http.request", "body": part, "more_body": more}

    async def _read(self, bodies: Bodies) -> int:
        async with bodies.complete(Request({"type": "http", "headers": []}, self._receive)) as parts:
            self.arrived.set()
            await self.let_go.wait()
            return sum(map(len, parts))


async def taken(*senders: Sender) -> None:
    """What was sent has been read."""
    await until(lambda: all(one.parts.empty() for one in senders))
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.fixture
async def bodies() -> AsyncIterator[Bodies]:
    made = Bodies(LIMIT)
    yield made
    assert made._held_bytes == 0 and not made._arriving


async def test_the_one_longest_on_its_way_makes_room(bodies: Bodies) -> None:
    senders = [Sender(bodies) for _ in range(5)]
    for one in senders:
        one.send(b"x" * (LIMIT - 1))
        await taken(one)
    with pytest.raises(ApiError) as given_up:
        await senders[0].task
    assert (given_up.value.status, given_up.value.body.error.code) == (503, "bodies_full")
    for one in senders[1:]:
        one.send(b"", more=False)
        one.let_go.set()
    assert [await one.task for one in senders[1:]] == [LIMIT - 1] * 4


async def test_one_whose_time_is_just_over_makes_room_and_fails_nobody_else(bodies: Bodies) -> None:
    """Its deadline has passed, but its task has not heard of it."""
    senders = [Sender(bodies) for _ in range(5)]
    for one in senders[:4]:
        one.send(b"x" * (LIMIT - 1))
    await taken(*senders)
    next(iter(bodies._arriving)).deadline.reschedule(0.0)
    senders[4].send(b"x" * (LIMIT - 1))
    with pytest.raises(ApiError):
        await senders[0].task
    for one in senders[1:]:
        one.send(b"", more=False)
        one.let_go.set()
    assert [await one.task for one in senders[1:]] == [LIMIT - 1] * 4


async def test_one_that_is_complete_keeps_its_room(bodies: Bodies) -> None:
    first = Sender(bodies)
    first.send(b"x" * (LIMIT - 1), more=False)
    await first.arrived.wait()
    others = [Sender(bodies) for _ in range(4)]
    for one in others:
        one.send(b"x" * (LIMIT - 1))
        await taken(one)
    with pytest.raises(ApiError):
        await others[0].task
    for one in (first, *others[1:]):
        one.send(b"", more=False)
        one.let_go.set()
    assert await first.task == LIMIT - 1
    await asyncio.gather(*(one.task for one in others[1:]))


async def test_short_ones_always_find_room(bodies: Bodies) -> None:
    long = [Sender(bodies) for _ in range(4)]
    short = [Sender(bodies) for _ in range(200)]
    for one in (*long, *short):
        one.send(b"x" * (LIMIT - 1 if one in long else module.FREE_BYTES))
    await taken(*long, *short)
    for one in (*long, *short):
        one.send(b"", more=False)
        one.let_go.set()
    assert len(await asyncio.gather(*(one.task for one in (*long, *short)))) == 204


async def test_a_slow_one_is_given_up(bodies: Bodies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE_S", 0.05)
    slow = Sender(bodies)
    slow.send(b"x")
    with pytest.raises(ApiError) as given_up:
        await asyncio.wait_for(slow.task, 10)
    assert (given_up.value.status, given_up.value.body.error.code) == (408, "body_too_slow")
    assert given_up.value.closes


async def test_the_rate_decides_and_not_the_last_bytes(bodies: Bodies) -> None:
    one = Sender(bodies)
    one.send(b"x")
    await taken(one)
    (body,) = bodies._arriving
    began_s = asyncio.get_running_loop().time()
    first_s = body.deadline.when()
    assert first_s is not None and 0 < first_s - began_s < module.GRACE_S + 0.1
    one.send(b"x" * module.MIN_BYTES_PER_S * 2)
    await taken(one)
    assert body.deadline.when() == pytest.approx(first_s + 2, abs=0.01)
    one.send(b"x" * module.MIN_BYTES_PER_S * 200)
    await taken(one)
    last_s = body.deadline.when()
    assert last_s is not None and last_s - began_s <= module.READ_S
    one.send(b"", more=False)
    one.let_go.set()
    await one.task
