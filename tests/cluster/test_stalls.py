"""A process stands still for five seconds, as one does that is swapped out or debugged: nobody loses a token by it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.checkpoints import prompt_ids
from tests.cluster.driving import Driver, driving, eventually, signal_instance

pytestmark = pytest.mark.slow
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


async def recomputed(driver: Driver) -> int:
    return sum(status.instance.counters.recomputed_tokens for status in (await driver.statuses()).values())


async def all_ready(driver: Driver) -> bool:
    return all(status.instance.state == "ready" for status in (await driver.statuses()).values())


def spans_lost(log_dir: Path) -> int:
    return sum(log.read_text(errors="replace").count("span_lost") for log in log_dir.glob("*.log"))


async def test_a_stalled_gmanager_costs_no_token(three, expect):
    """It used to find everyone else dead in the first heartbeat it read: 6 spans lost, 784 tokens recomputed."""
    async with driving(three) as driver:
        before, lost = await recomputed(driver), spans_lost(three.log_dir)
        async with stalled(three.gmanager.signal) as over:
            while not over.done():
                prompt = prompt_ids(700, seed=1)
                expect(prompt, await driver.generate(prompt, 100, at="i0"), 100)
            run = await driver.start(prompt_ids(700, seed=2), 700, at="i0")
            await run.reached(20)
            assert await driver.creditor(run)
        await eventually(lambda: all_ready(driver), 10, "the gManager calls all ready again")
        expect(run.prompt, await run.finished(), 700)
        assert await recomputed(driver) == before and spans_lost(three.log_dir) == lost
        await driver.settled()


async def test_a_stalled_owner_or_creditor_ends_no_request(four, expect):
    """Its lease runs out meanwhile, and what it held is computed again; the stream goes on as if nothing had been."""
    async with driving(four) as driver:
        for index, name in enumerate(("i0", "a creditor")):
            run = await driver.start(prompt_ids(1000, seed=index), 400, at="i0")
            await run.reached(5)
            who = await driver.creditor(run) if name == "a creditor" else name
            async with stalled(lambda signum, who=who: signal_instance(driver.instance(who), signum)):
                pass
            expect(run.prompt, await run.finished(), 400)
            await eventually(lambda: all_ready(driver), 10, "the gManager calls all ready again")
            await driver.settled(10.0)
