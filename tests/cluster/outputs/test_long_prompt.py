"""One prompt longer than any instance's memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from distkv import LocalCluster
from distkv.wire.messages.to_client import Status
from tests.checkpoints import prompt_ids
from tests.cluster.conftest import started
from tests.cluster.driving import Driver, Running, driving, eventually

NAMES = {"i0", "i1", "i2"}
Statuses = dict[str, Status]


async def test_three_times_512_tokens_serve_1400_and_64(three, expect):
    prompt = prompt_ids(1400)
    async with driving(three) as driver:

        async def all_lies_with_three() -> bool:
            spans = await driver.spans(run)
            return set(spans) == NAMES and sum(spans.values()) >= 1400

        async with driver.slowed(*NAMES):
            run = await driver.start(prompt, 64)
            await eventually(all_lies_with_three, 30, "all of it lies with all three")
        explanation = await (await driver.client()).explain(run.request_id)
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
        # Once all are linked, what passes grows by little while the other is placed.
        await driver.generate(prompt_ids(1300, seed=8), 4, at="i0")
        for length in (470, 1230):
            # It leaves when the other is placed: then there is room to grow, and too little for all to come home.
            passing = await driver.start(prompt_ids(225), 300, at="i0")
            await passing.reached(1)
            prompt = prompt_ids(length, seed=length)
            run = await driver.start(prompt, 200, at="i0")
            await run.reached(1)
            await passing.cancel()
            before, after, remote[length] = await without_moves(driver, run, range(10, 200, 30))
            expect(prompt, await run.finished(), 200)
            was, now = before["i0"].instance.counters, after["i0"].instance.counters
            tokens = after["i0"].requests[0].num_tokens - before["i0"].requests[0].num_tokens
            assert now.attend_wait_s > was.attend_wait_s and now.plan_s > was.plan_s > 0
            per_token[length] = (now.query_bytes - was.query_bytes) / tokens / len(creditors(after))
            await driver.settled()
    # Of the longer one at least 718 tokens, which home has no room for; of the other at most as many as came home late.
    assert remote[1230] > 1.3 * remote[470] > 0
    assert per_token[1230] == pytest.approx(per_token[470], rel=0.1)


async def without_moves(driver: Driver, run: Running, reached: range) -> tuple[Statuses, Statuses, int]:
    """The statuses before and after some tokens in which no KV travelled and exactly the creditors served, and how much
    of the request lay with them. What there is room for may come home before."""
    before = None
    for count in reached:
        async with driver.frozen_at(run, count, "i0"):
            after, spans = await driver.statuses(), await driver.spans(run)
        if before is not None and is_without_moves(before, after):
            return before, after, sum(spans.values()) - spans.get("i0", 0)
        before = after
    raise AssertionError(f"KV travelled all the time: {before}")


def is_without_moves(before: Statuses, after: Statuses) -> bool:
    lend = creditors(after)
    for name in NAMES:
        was, now = before[name].instance.counters, after[name].instance.counters
        assert now.step_serve_s <= now.serve_s
        served = {now.serve_s > was.serve_s, now.attend_queries > was.attend_queries}
        if now.kv_bytes != was.kv_bytes or served != {name in lend}:
            return False
    return creditors(before) == lend != set()


def creditors(statuses: Statuses) -> set[str]:
    return {name for name, status in statuses.items() if status.instance.blocks.lent}


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


@pytest.mark.slow
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
