"""Many requests, several debtors and creditors at once, instances that lend and borrow at the same time."""

from __future__ import annotations

from random import Random

from tests.checkpoints import prompt_ids
from tests.cluster.driving import Driver, driving, eventually


async def lends(driver: Driver) -> dict[str, tuple[int, int]]:
    """(lent, borrowed) blocks by instance."""
    return {
        name: (status.instance.blocks.lent, status.instance.borrowed_blocks)
        for name, status in (await driver.statuses()).items()
    }


async def test_sixteen_mixed_requests_each_as_if_alone(three, expect):
    random = Random(16)
    lengths = [8, 1200, 40, 700, 16, 150, 9, 300, 64, 1000, 25, 500, 100, 12, 200, 33]
    prompts = [prompt_ids(length, seed=index) for index, length in enumerate(lengths)]
    counts = [random.randint(8, 40) for _ in lengths]
    async with driving(three) as driver:
        runs = [await driver.start(p, n) for p, n in zip(prompts, counts, strict=True)]

        async def ended() -> bool:
            await driver.statuses()  # checks
            return all(run.task.done() for run in runs)

        await eventually(ended, 90, "all requests ended")
        for run, prompt, count in zip(runs, prompts, counts, strict=True):
            expect(prompt, await run.finished(), count)
        await driver.settled()


async def test_several_creditors_and_several_debtors_at_once(four, expect):
    async with driving(four) as driver:
        first = await driver.start(prompt_ids(1100, seed=1), 200, at="i0")
        async with driver.frozen_at(first, 1, "i0"):
            spans = await driver.spans(first)
        assert len(spans) >= 3
        half_full = min(spans, key=lambda name: spans[name])
        second = await driver.start(prompt_ids(450, seed=2), 100, at=half_full)
        async with driver.frozen_at(second, 1, "i0", half_full):
            now = await lends(driver)
            assert not first.task.done() and not second.task.done()
        assert sum(lent > 0 for lent, _ in now.values()) >= 3, now
        assert {name for name, (_, borrowed) in now.items() if borrowed} == {"i0", half_full}
        for run in (first, second):
            expect(run.prompt, await run.finished(), run.params.max_tokens)
        await driver.settled()


async def test_more_than_fits_waits_its_turn(three, expect):
    """Together they need four times the memory there is."""
    async with driving(three) as driver:
        runs = [await driver.start(prompt_ids(1000, seed=index), 16) for index in range(6)]
        for run in runs:
            expect(run.prompt, await run.finished(90), 16)
        await driver.settled()
