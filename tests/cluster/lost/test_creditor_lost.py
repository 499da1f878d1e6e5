"""A creditor is killed, stopped or cut off mid-decode: the request goes on as if nothing had happened."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from distkv.client.local.cluster import InstanceHandle
from tests.checkpoints import prompt_ids
from tests.cluster.driving import (
    BLOCK_TOKENS,
    driving,
    eventually,
    exit_of,
    failure_of,
    signal_instance,
    worker_pid,
)

MAX_TOKENS = 128


def kill_worker(handle: InstanceHandle) -> None:
    os.kill(worker_pid(handle), signal.SIGKILL)


def kill_rmanager(handle: InstanceHandle) -> None:
    os.kill(handle.pid, signal.SIGKILL)


def stop_worker(handle: InstanceHandle) -> None:
    os.kill(worker_pid(handle), signal.SIGSTOP)


def stop_instance(handle: InstanceHandle) -> None:
    signal_instance(handle, signal.SIGSTOP)


@pytest.mark.parametrize(
    "lose",
    [
        InstanceHandle.kill,
        kill_worker,
        pytest.param(stop_instance, marks=pytest.mark.slow),
        pytest.param(kill_rmanager, marks=pytest.mark.slow),
        pytest.param(stop_worker, marks=pytest.mark.slow),
    ],
)
async def test_exactly_the_lost_span_is_rebuilt(four, expect, lose: Callable[[InstanceHandle], None]):
    async with driving(four) as driver:
        before = (await driver.statuses())["i0"].instance.counters.recomputed_tokens
        run = await driver.start(prompt_ids(1200, seed=3), MAX_TOKENS, at="i0")
        async with driver.frozen_at(run, 10, "i0"):
            victim = await driver.creditor(run)
            spans = await driver.spans(run)
        assert len(spans) >= 3
        lose(driver.instance(victim))
        expect(run.prompt, await run.finished(), MAX_TOKENS)
        recomputed = (await driver.statuses())["i0"].instance.counters.recomputed_tokens - before
        assert abs(recomputed - spans[victim]) <= BLOCK_TOKENS, f"{recomputed} recomputed, {spans[victim]} lost"
        if "kill" in lose.__name__:
            assert await exit_of(driver.instance(victim)) != 0
        if lose is kill_worker:
            assert "the engine worker is gone: it was killed by SIGKILL" in driver.instance(victim).last_log()
        # The others go on serving, together.
        again = prompt_ids(1100, seed=4)
        expect(again, await driver.generate(again, 8), 8)
        driver.instance(victim).kill()
        await driver.settled()


@pytest.mark.slow
async def test_an_instance_whose_worker_hangs_ends(four, expect):
    async with driving(four) as driver:
        victim = driver.instance("i2")
        stop_worker(victim)
        # Borrows at the one that hangs, too, and goes on when it has ended.
        run = await driver.start(prompt_ids(1300, seed=9), 16, at="i0")
        assert await exit_of(victim) == 1
        assert "the engine worker hangs" in victim.last_log()
        expect(run.prompt, await run.finished(), 16)
        await driver.settled()


@pytest.mark.slow
async def test_two_creditors_lost_one_after_the_other(four, expect):
    async with driving(four) as driver:
        run = await driver.start(prompt_ids(600, seed=5), 320, at="i0")
        lost: set[str] = set()

        async def creditors() -> set[str]:
            return set(await driver.spans(run)) - {"i0"} - lost

        for reached in (10, 20):
            async with driver.slowed("i0"):
                await run.reached(reached)
                # More may have come before the loss of the first was noticed, and none lies elsewhere right after that.
                (victim, *_) = await eventually(creditors, 20, "a block lies at a creditor that lives")
                driver.instance(victim).kill()
            lost.add(victim)
        expect(run.prompt, await run.finished(), 320)
        await driver.settled()


async def test_a_creditor_lost_during_prefill(four, expect):
    async with driving(four) as driver:
        run = await driver.start(prompt_ids(1200, seed=6), MAX_TOKENS, at="i0")

        async def creditors() -> set[str]:
            return set(await driver.spans(run)) - {"i0"}

        (victim, *_) = await eventually(creditors, 10, "a block lies at a creditor")
        driver.instance(victim).kill()
        expect(run.prompt, await run.finished(), MAX_TOKENS)
        await driver.settled()


@pytest.mark.slow
async def test_without_enough_memory_left_it_fails_with_the_numbers(start):
    async with driving(start(2, 512, request_timeout_s=2.0)) as driver:
        run = await driver.start(prompt_ids(800, seed=8), MAX_TOKENS, at="i0")
        await run.reached(10)
        driver.instance("i1").kill()
        failed = await failure_of(run)
        assert failed.retryable
        assert "live instances together can give 512" in failed.reason
        await driver.settled()


@pytest.mark.slow
async def test_memory_that_comes_back_in_time_lets_it_go_on(start, expect):
    async with driving(start(2, 512)) as driver:
        run = await driver.start(prompt_ids(800, seed=8), MAX_TOKENS, at="i0")
        await run.reached(10)
        await driver.restart("i1")
        expect(run.prompt, await run.finished(), MAX_TOKENS)
        await driver.settled()
