"""Waiting for what comes soon, with a deadline for what does not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

DEADLINE_S = 30.0
T = TypeVar("T")


async def soon(awaitable: Awaitable[T]) -> T:
    """What it returns; TimeoutError if that takes DEADLINE_S."""
    return await asyncio.wait_for(awaitable, DEADLINE_S)


async def until(condition: Callable[[], object]) -> None:
    """Return when the condition holds. For what only other threads or processes know: they signal nobody."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - it is what looks
            await asyncio.sleep(0.001)
