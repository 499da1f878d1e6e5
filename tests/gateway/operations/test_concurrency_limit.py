"""How many requests run at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from distkv.wire.messages.to_rmanager import Submit
from tests.gateway.harness import error_of, silence, until

Start = Callable[..., Any]


async def test_more_than_the_limit_at_once(start: Start) -> None:
    gateway = await start(silence, max_concurrent_requests=2)
    running = [asyncio.create_task(gateway.complete()) for _ in range(2)]
    await gateway.fakes.instances[0].wait_for(Submit, 2)
    answer = await gateway.complete()
    error_of(answer, 429, None, "too_many_requests")
    assert (await gateway.http.get("/health")).status_code == 200
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    # Their places are free again.
    await until(lambda: _is_let_in(gateway))


async def _is_let_in(gateway: Any) -> bool:
    return (await gateway.http.get("/v1/models")).status_code == 200
