"""How many requests run at the same time, and what takes no place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from distkv.gateway.operations import concurrency_limit as module
from distkv.gateway.operations.concurrency_limit import ConcurrencyLimit
from distkv.gateway.schema.errors import ApiError
from distkv.wire.messages.to_rmanager import Submit
from tests.gateway.api.streams.test_event_stream import connect
from tests.gateway.harness import error_of, silence, speak, until

Start = Callable[..., Any]


async def test_more_than_the_limit_at_once(start: Start) -> None:
    gateway = await start(silence, max_concurrent_requests=2)
    running = [asyncio.create_task(gateway.complete()) for _ in range(2)]
    await gateway.fakes.instances[0].wait_for(Submit, 2)
    answer = await gateway.complete()
    error_of(answer, 429, None, "too_many_requests")
    for path in ("/health", "/v1/models"):
        assert (await gateway.http.get(path)).status_code == 200
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    # Their places are free again.
    await until(lambda: _is_let_in(gateway))


async def _is_let_in(gateway: Any) -> bool:
    return (await gateway.post("/tokenize", prompt="x")).status_code == 200


async def test_each_choice_has_a_place(start: Start) -> None:
    gateway = await start(silence, max_concurrent_requests=8)
    error_of(await gateway.complete(n=9), 400, "n", "too_many_outputs")
    error_of(await gateway.complete(["x"] * 3, n=3), 400, "n", "too_many_outputs")
    running = asyncio.create_task(gateway.complete(n=5))
    await gateway.fakes.instances[0].wait_for(Submit, 5)
    error_of(await gateway.complete(n=4), 429, None, "too_many_requests")
    error_of(await gateway.complete(n=4, stream=True), 429, None, "too_many_requests")
    others = asyncio.create_task(gateway.complete(n=3))
    await gateway.fakes.instances[0].wait_for(Submit, 8)
    for task in (running, others):
        task.cancel()
    await asyncio.gather(running, others, return_exceptions=True)


async def test_two_that_want_half_each_do_not_wait_for_each_other() -> None:
    limit = ConcurrencyLimit(8)
    async with limit.places(count=5):
        with pytest.raises(ApiError) as refused:
            async with limit.places(count=5):
                pass
        assert refused.value.status == 429 and limit.running == 5
    assert limit.running == 0 and await limit.empty(0.1)


class Clients:
    """Requests of clients to one limit, each held until it is ended."""

    def __init__(self, most: int) -> None:
        self.limit = ConcurrencyLimit(most)
        self.begun: list[str] = []
        self._held: dict[str, list[AsyncExitStack]] = {}

    async def begin(self, client: str, count: int = 1) -> None:
        stack = AsyncExitStack()
        await stack.enter_async_context(self.limit.places(client, count))
        self.begun.append(client)
        self._held.setdefault(client, []).append(stack)

    async def end(self, client: str) -> None:
        await self._held[client].pop(0).aclose()
        for _ in range(3):
            await asyncio.sleep(0)

    async def end_all(self) -> None:
        for stacks in self._held.values():
            for stack in stacks:
                await stack.aclose()
            stacks.clear()

    async def waits(self, client: str, count: int = 1) -> asyncio.Task[None]:
        """A request that waits now."""
        waiting = self.limit.waiting
        task = asyncio.create_task(self.begin(client, count))
        await asyncio.sleep(0)
        assert self.limit.waiting == waiting + 1
        return task


async def status_of(work: Any) -> int:
    with pytest.raises(ApiError) as refused:
        await work
    return refused.value.status


async def test_a_client_with_all_places_is_refused_and_another_has_the_next_one() -> None:
    clients = Clients(4)
    for _ in range(4):
        await clients.begin("greedy")
    assert await status_of(clients.begin("greedy")) == 429
    other = await clients.waits("other")
    assert await status_of(clients.begin("greedy")) == 429
    await clients.end("greedy")
    await other
    assert clients.limit.running == 4 and clients.begun[-1] == "other"
    # Half of the places is the share of each now.
    others = [await clients.waits("other")]
    assert await status_of(clients.begin("other")) == 429
    await clients.end("greedy")
    await asyncio.gather(*others)
    await clients.end_all()
    assert not clients.limit.running and not clients.limit._of and await clients.limit.empty(0.1)


async def test_places_that_come_free_go_to_clients_by_turns() -> None:
    clients = Clients(8)
    await clients.begin("first", 8)
    tasks = [await clients.waits("a") for _ in range(3)] + [await clients.waits("b") for _ in range(2)]
    await clients.end("first")
    await asyncio.gather(*tasks)
    assert clients.begun[1:] == ["a", "b", "a", "b", "a"]
    await clients.end_all()


async def test_one_that_wants_many_places_waits_until_they_are_free_together() -> None:
    clients = Clients(4)
    for _ in range(4):
        await clients.begin("one")
    many = await clients.waits("many", 3)
    few = await clients.waits("few")
    for _ in range(2):
        await clients.end("one")
    assert not many.done() and not few.done(), "a small one that came later does not go by it for ever"
    await clients.end("one")
    await many
    assert not few.done()
    await clients.end("one")
    await few
    await clients.end_all()


async def test_one_that_waits_is_refused_in_the_end_and_one_that_leaves_is_forgotten(monkeypatch) -> None:
    monkeypatch.setattr(module, "WAIT_S", 0.01)
    clients = Clients(1)
    await clients.begin("one")
    assert await status_of(clients.begin("late")) == 429
    monkeypatch.setattr(module, "WAIT_S", 60.0)
    leaves, stays = await clients.waits("leaves"), await clients.waits("stays")
    leaves.cancel()
    await asyncio.gather(leaves, return_exceptions=True)
    await clients.end("one")
    await stays
    # One that leaves in the moment in which it gets its place gives it back.
    leaves, stays = await clients.waits("leaves"), await clients.waits("next")
    clients.limit._give_out()
    ending = asyncio.create_task(clients.end("stays"))
    await asyncio.sleep(0)
    leaves.cancel()
    await asyncio.gather(ending, leaves, return_exceptions=True)
    await stays
    assert clients.limit.running == 1
    await clients.end_all()
    assert not clients.limit._of and not clients.limit.waiting


async def test_those_that_wait_are_refused_when_the_gateway_drains() -> None:
    clients = Clients(1)
    await clients.begin("one")
    waiting = await clients.waits("other")
    clients.limit.close()
    assert await status_of(waiting) == 503 and await status_of(clients.begin("new")) == 503
    await clients.end_all()
    assert await clients.limit.empty(0.1)


async def test_five_thousand_clients_get_a_place_each_beside_one_that_wants_all() -> None:
    clients = Clients(1024)
    for _ in range(1024):
        await clients.begin("greedy")
    tasks = [asyncio.create_task(clients.begin(f"client {index}")) for index in range(5000)]
    await asyncio.sleep(0)
    assert clients.limit.waiting == 5000
    for _ in range(1024):
        assert await status_of(clients.begin("greedy")) == 429
        await clients.end("greedy")
    for index in range(5000):
        await asyncio.wait_for(tasks[index], 30)
        await clients.end(f"client {index}")
    assert clients.begun[1024:] == [f"client {index}" for index in range(5000)]
    assert not clients.limit.running and not clients.limit._of


@pytest.mark.parametrize("stream", [False, True])
async def test_the_client_of_another_key_gets_a_place_that_comes_free(start: Start, stream: bool) -> None:
    gateway = await start(silence, max_concurrent_requests=2, api_key=["greedy", "other"])

    def complete(key: str) -> asyncio.Task[Any]:
        headers = {"authorization": f"Bearer {key}"}
        return asyncio.create_task(gateway.post("/v1/completions", headers, prompt="x", stream=stream))

    running = [complete("greedy") for _ in range(2)]
    await gateway.fakes.instances[0].wait_for(Submit, 2)
    error_of(await complete("greedy"), 429, None, "too_many_requests")
    other = complete("other")
    for task in running[:1]:
        task.cancel()
    await gateway.fakes.instances[0].wait_for(Submit, 3)
    for task in (*running, other):
        task.cancel()
    await asyncio.gather(*running, other, return_exceptions=True)


async def test_a_half_sent_body_has_no_place(start: Start) -> None:
    gateway = await start(speak, max_concurrent_requests=1)
    senders = [await connect(gateway.url) for _ in range(3)]
    for _, writer in senders:
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{")
        await writer.drain()
    for _ in range(5):
        assert (await gateway.complete(max_tokens=1)).status_code == 200
    for _, writer in senders:
        writer.close()
