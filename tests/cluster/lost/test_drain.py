"""An instance drains while requests wait there: they are served elsewhere, and what runs is finished."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from distkv.cli.signals import BURST_S
from tests.checkpoints import prompt_ids
from tests.cluster.driving import Driver, driving, eventually, exit_of


async def test_requests_that_wait_at_a_draining_instance_are_served_by_another(start, expect):
    """At once, and not when what runs there has ended."""
    cluster = start(2, 2048, max_num_seqs=1, shutdown_timeout_s=60.0)
    async with driving(cluster) as driver:
        long = [await driver.start(prompt_ids(100 + index, seed=index), 1000) for index in range(2)]
        for run in long:
            await run.reached(1)
        async with driver.frozen("i0", "i1"):  # what runs does not end meanwhile
            short = [await driver.start(prompt_ids(100 + index, seed=index), 50) for index in range(2, 6)]
            before = await eventually(lambda: _waiting(driver, 4), 8, "four wait")
            owner = max(before, key=before.__getitem__)
            other = next(name for name in before if name != owner)
            os.kill(driver.instance(owner).pid, signal.SIGTERM)
            await eventually(lambda: _all_wait_at(driver, other), 8, f"all that wait, wait at {other}")
            assert driver.instance(owner).alive, "it ended before what runs there had"
        assert await exit_of(driver.instance(owner)) == 0
        for run in (*long, *short):
            expect(run.prompt, await run.finished(), run.params.max_tokens)
        await driver.settled()


@pytest.mark.slow
async def test_a_creditor_that_drains_lends_what_a_request_there_grows_by(start, expect):
    """No other instance could hold it: it stood still for as long as a drain may take, and failed."""
    cluster = start(2, 1024, shutdown_timeout_s=60.0)
    async with driving(cluster) as driver:
        run = await driver.start(prompt_ids(950), 400)
        await run.reached(200)
        statuses = await driver.statuses()
        (creditor,) = [name for name, status in statuses.items() if status.instance.blocks.lent]
        os.kill(driver.instance(creditor).pid, signal.SIGTERM)
        expect(run.prompt, await run.finished(), run.params.max_tokens)
        assert await exit_of(driver.instance(creditor)) == 0
        await driver.settled()


@pytest.mark.slow
async def test_a_stop_of_all_does_not_end_one_that_drains_already(start, expect):
    """To be told again is to end at once, but only by whoever has told it before."""
    cluster = start(2, 2048, shutdown_timeout_s=60.0)
    async with driving(cluster) as driver:
        run = await driver.start(prompt_ids(100), 1000, at="i0")
        await run.reached(1)
        os.kill(driver.instance("i0").pid, signal.SIGTERM)
        async with driver.frozen("i0"):  # it does not end meanwhile
            await asyncio.sleep(BURST_S)  # a signal so soon may be one that was sent to a group
        await asyncio.to_thread(cluster.close)
        expect(run.prompt, await run.finished(), 1000)
        assert driver.instance("i0").exit_code == 0


async def _waiting(driver: Driver, count: int) -> dict[str, int]:
    """How many wait at each instance, once `count` do in all."""
    waiting = {name: status.instance.waiting for name, status in (await driver.statuses()).items()}
    return waiting if sum(waiting.values()) == count else {}


async def _all_wait_at(driver: Driver, instance_id: str) -> bool:
    return (await driver.statuses())[instance_id].instance.waiting == 4
