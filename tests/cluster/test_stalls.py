"""A process stands still for five seconds, as one does that is swapped out or debugged: nobody else loses a token."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tests.checkpoints import prompt_ids
from tests.cluster.driving import Driver, driving, eventually, signal_instance

pytestmark = pytest.mark.slow
STALL_S = 5.0


@asynccontextmanager
async def stalled(stop: Callable[[int], None]) -> AsyncIterator[None]:
    """SIGSTOP, five seconds at least, SIGCONT."""
    stop(signal.SIGSTOP)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.sleep(STALL_S))
            yield
    finally:
        stop(signal.SIGCONT)


async def recomputed(driver: Driver) -> int:
    return sum(status.instance.counters.recomputed_tokens for status in (await driver.statuses()).values())


async def all_ready(driver: Driver) -> bool:
    return all(status.instance.state == "ready" for status in (await driver.statuses()).values())


def spans_lost(driver: Driver) -> int:
    return sum(log.read_text(errors="replace").count("span_lost") for log in driver.cluster.log_dir.glob("*.log"))


async def test_a_stalled_gmanager_costs_no_token(three, expect):
    """It used to find everyone else dead in the first heartbeat it read: 6 spans lost, 784 tokens recomputed."""
    async with driving(three) as driver:
        before, lost = await recomputed(driver), spans_lost(driver)
        runs = []
        async with stalled(three.gmanager.signal):
            for seed in range(3):
                runs.append(await driver.start(prompt_ids(700, seed=seed), 600, at="i0"))
                await runs[-1].reached(1)
            assert await driver.creditor(runs[0])
        await eventually(lambda: all_ready(driver), 10, "the gManager calls all ready again")
        for run in runs:
            expect(run.prompt, await run.finished(), 600)
        assert await recomputed(driver) == before and spans_lost(driver) == lost
        await driver.settled()
