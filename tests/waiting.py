"""Waiting for what comes soon, with a deadline for what does not."""

from __future__ import annotations

import asyncio
import time
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


def wait_until(condition: Callable[[], T], deadline_s: float = DEADLINE_S) -> T:
    """What the condition returns once that is true, off any event loop; TimeoutError if it is not by the deadline."""
    give_up_s = time.monotonic() + deadline_s
    while not (found := condition()):
        if time.monotonic() > give_up_s:
            raise TimeoutError(f"not within {deadline_s:g} s: {found!r}")
        time.sleep(0.002)
    return found
