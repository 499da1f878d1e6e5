"""A process that stands still for longer than a gManager waits for heartbeats."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

STALL_S = 5.0


@asynccontextmanager
async def stalled(send: Callable[[int], None]) -> AsyncIterator[asyncio.Task[None]]:
    """SIGSTOP, five seconds at least, SIGCONT; gives the task that ends with the five seconds."""
    send(signal.SIGSTOP)
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks.create_task(asyncio.sleep(STALL_S))
    finally:
        send(signal.SIGCONT)
