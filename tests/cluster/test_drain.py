"""An instance drains while requests wait there: they are served elsewhere, and what runs is finished."""

from __future__ import annotations

import os
import signal

from tests.checkpoints import prompt_ids
from tests.cluster.driving import driving, exit_of


async def test_requests_that_wait_at_a_draining_instance_are_served_by_another(start, expect):
    """At once, and not at the drain's deadline."""
    cluster = start(2, 512, max_num_seqs=1, shutdown_timeout_s=60.0)
    async with driving(cluster) as driver:
        runs = [await driver.start(prompt_ids(100 + index, seed=index), 350) for index in range(6)]
        for run in runs[:2]:
            await run.reached(1)
        waiting = {name: status.instance.waiting for name, status in (await driver.statuses()).items()}
        owner = max(waiting, key=waiting.__getitem__)
        assert waiting[owner] >= 2
        os.kill(driver.instance(owner).pid, signal.SIGTERM)
        assert await exit_of(driver.instance(owner), 30) == 0
        other = next(name for name in waiting if name != owner)
        assert (await driver.statuses())[other].instance.waiting >= 2, "it went before those that waited were served"
        for run in runs:
            expect(run.prompt, await run.finished(), 350)
        await driver.settled()
