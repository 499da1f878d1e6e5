"""What every asyncio actor does in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def every(period_s: float, call: Callable[[], None]) -> None:
    """Call again and again, `period_s` apart, until cancelled."""
    while True:
        await asyncio.sleep(period_s)
        call()


async def first_of(*waits: asyncio.Task[object]) -> None:
    """Return when one of the tasks is done, raise what it raised, and cancel the others."""
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
