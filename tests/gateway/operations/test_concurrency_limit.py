"""How many requests run at the same time, and what takes no place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from distkv.gateway.operations.concurrency_limit import ConcurrencyLimit
from distkv.gateway.schema.errors import ApiError
from distkv.wire.messages.to_rmanager import Submit
from tests.gateway.api.test_event_stream import connect
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
    with limit.places(5):
        with pytest.raises(ApiError) as refused, limit.places(5):
            pass
        assert refused.value.status == 429 and limit.running == 5
    assert limit.running == 0 and await limit.empty(0.1)


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
