"""Steps in two microbatches, over two links to every creditor."""

from __future__ import annotations

import pytest

from tests.checkpoints import prompt_ids
from tests.cluster.driving import driving


async def test_prompts_and_decode_in_microbatches(start, expect):
    async with driving(start(2, 384, microbatches=2)) as driver:
        long = await driver.start(prompt_ids(500), 24, at="i0")
        await long.reached(1)
        short = await driver.start(prompt_ids(40, seed=1), 24, at="i0")
        for run, prompt in (long, prompt_ids(500)), (short, prompt_ids(40, seed=1)):
            expect(prompt, await run.finished(), 24)
        assert await driver.places(long) == {"i0", "i1"}
        await driver.settled()


@pytest.mark.slow
async def test_a_creditor_lost_between_microbatches(start, expect):
    """What lay there is computed again."""
    cluster = start(3, 384, microbatches=2)
    async with driving(cluster) as driver:
        prompt = prompt_ids(500, seed=2)
        run = await driver.start(prompt, 100, at="i0")
        async with driver.frozen_at(run, 4, "i0"):
            creditor = max(set(await driver.spans(run)) - {"i0"})
        next(handle for handle in cluster.instances if handle.instance_id == creditor).kill()
        expect(prompt, await run.finished(), 100)
