"""One prompt longer than any instance's memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from distkv import LocalCluster
from tests.checkpoints import prompt_ids
from tests.cluster.conftest import started
from tests.cluster.driving import driving, eventually

NAMES = {"i0", "i1", "i2"}


async def test_three_times_512_tokens_serve_1400_and_64(three, expect):
    prompt = prompt_ids(1400)
    async with driving(three) as driver:
        run = await driver.start(prompt, 64)
        await run.reached(2)
        async with driver.frozen(*NAMES):
            spans = await driver.spans(run)
            explanation = await (await driver.client()).explain(run.request_id)
        assert set(spans) == NAMES
        assert sum(spans.values()) >= 1400
        one, sent = explanation.explained, explanation.dispatched
        borrowed = [entry for entry in one.history if entry.happened == "borrowed"]
        assert {one.instance_id, *(entry.instance_id for entry in borrowed)} == NAMES, explanation.sentences()
        assert sent is not None and sent.instance_id == one.instance_id and sent.num_ready == 3
        expect(prompt, await run.finished(), 64)
        assert run.finish_reason == "length"
        await driver.settled()


async def test_decode_ships_queries_and_no_kv(three, expect):
    """What travels per token and creditor is the same however much lies remote."""
    per_token, remote = {}, {}
    async with driving(three) as driver:
        for length in (250, 800):
            # It leaves when the other is placed: then there is room to grow, and no more spans are borrowed.
            passing = await driver.start(prompt_ids(400), 300, at="i0")
            await passing.reached(1)
            prompt = prompt_ids(length, seed=length)
            run = await driver.start(prompt, 150, at="i0")
            await run.reached(1)
            await passing.cancel()
            await run.reached(10)
            async with driver.frozen("i0"):
                before = await driver.statuses()
                remote[length] = length - (await driver.spans(run)).get("i0", 0)
            await run.reached(40)
            async with driver.frozen("i0"):
                after = await driver.statuses()
            expect(prompt, await run.finished(), 150)
            sent = after["i0"].instance.counters.query_bytes - before["i0"].instance.counters.query_bytes
            tokens = after["i0"].requests[0].num_tokens - before["i0"].requests[0].num_tokens
            assert after["i0"].instance.counters.attend_wait_s > before["i0"].instance.counters.attend_wait_s
            assert after["i0"].instance.counters.plan_s > before["i0"].instance.counters.plan_s > 0
            creditors = {name for name, status in after.items() if status.instance.blocks.lent}
            per_token[length] = sent / tokens / len(creditors)
            for name in NAMES:
                was, now = before[name].instance.counters, after[name].instance.counters
                assert now.kv_bytes == was.kv_bytes
                assert (now.serve_s > was.serve_s) == (name in creditors)
                assert now.step_serve_s <= now.serve_s
                assert (now.attend_queries > was.attend_queries) == (name in creditors)
            await driver.settled()
    assert remote[800] > 1.5 * remote[250] > 0
    assert per_token[800] == pytest.approx(per_token[250], rel=0.1)


async def test_counts_add_up_at_every_moment(three, expect):
    prompt = prompt_ids(1200, seed=5)
    async with driving(three) as driver:
        run = await driver.start(prompt, 48)

        async def ended() -> bool:
            await driver.statuses()  # checks
            return run.task.done()

        await eventually(ended, 60, "the request ended")
        expect(prompt, await run.finished(), 48)
        await driver.settled()


@pytest.mark.parametrize("owner", ["i0", "i1", "i2"])
async def test_uneven_pools_serve_95_percent_of_their_sum(uneven, expect, owner):
    prompt = prompt_ids(1702 - 24, seed=7)
    async with driving(uneven) as driver:
        run = await driver.start(prompt, 24, at=owner)
        expect(prompt, await run.finished(), 24)
        assert await driver.places(run) == NAMES
        await driver.settled()


@pytest.fixture(scope="module")
def uneven(checkpoint: Path) -> Iterator[LocalCluster]:
    with started(checkpoint, 3, [256, 512, 1024]) as uneven:
        yield uneven
