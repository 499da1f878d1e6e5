"""The gManager dies and comes back: requests do not notice."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from distkv import AsyncClient, SamplingParams
from distkv.client.local import launch
from distkv.client.local.child import wait_ready
from distkv.client.local.cluster import InstanceHandle
from tests.checkpoints import prompt_ids
from tests.cluster.driving import driving, eventually, exit_of
from tests.conftest import LASTING


async def test_running_and_new_requests_outlive_it_and_its_ledger_is_rebuilt(three, expect):
    async with driving(three) as driver:
        running = await driver.start(prompt_ids(700, seed=1), 600)
        await running.reached(5)
        three.gmanager.kill()
        # New ones too, also such that must borrow; the client that knew the cluster finds an instance itself.
        small, large = prompt_ids(100, seed=2), prompt_ids(550, seed=3)
        tokens = await driver.generate(small, 8)
        late = await driver.start(large, 8)
        three.restart_gmanager()
        LASTING.add(three.gmanager.pid)

        async def complete() -> bool:
            status = await driver.statuses()
            return len(status) == 3 and all(one.instance.state == "ready" for one in status.values())

        await eventually(complete, 30, "the gManager knows all instances again")
        expect(small, tokens, 8)
        expect(large, await late.finished(), 8)
        expect(running.prompt, await running.finished(), 600)
        # Borrowing goes through the new one.
        again = prompt_ids(1300, seed=4)
        expect(again, await driver.generate(again, 8), 8)
        await driver.settled()


async def test_one_that_is_stopped_delays_and_ends_nothing(three, expect):
    """Instances and clients wait a moment for it, then go by the member list they have."""
    async with driving(three) as driver:
        running = await driver.start(prompt_ids(1000, seed=1), 100)
        await running.reached(1)
        three.gmanager.signal(signal.SIGSTOP)
        try:
            for prompt in (prompt_ids(300, seed=5), prompt_ids(1300, seed=6)):
                expect(prompt, await driver.generate(prompt, 8), 8)
            expect(running.prompt, await running.finished(), 100)
        finally:
            three.gmanager.signal(signal.SIGCONT)

        async def all_ready() -> bool:
            return all(status.instance.state == "ready" for status in (await driver.statuses()).values())

        await eventually(all_ready, 30, "the gManager calls all ready again")
        await driver.settled()


@pytest.mark.parametrize("how", ["stopped", "restarted"])
async def test_one_that_wakes_up_or_comes_back_costs_no_token(three, expect, how):
    """Else it calls instances dead of which it has read nothing yet, and these drop what lies there at its word."""

    async def recomputed() -> int:
        status = await driver.statuses()
        return sum(one.instance.counters.recomputed_tokens for one in status.values())

    async def serve(seconds: float) -> None:
        """Requests that lie on several instances, one after the other."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            prompt = prompt_ids(1100, seed=7)
            expect(prompt, await driver.generate(prompt, 60, at="i0"), 60)

    async with driving(three) as driver:
        await serve(0.1)
        before = await recomputed()
        if how == "stopped":
            three.gmanager.signal(signal.SIGSTOP)
            try:
                await serve(5.0)
            finally:
                three.gmanager.signal(signal.SIGCONT)
        else:
            three.gmanager.kill()
            await serve(2.0)
            three.restart_gmanager()
            LASTING.add(three.gmanager.pid)
        await serve(3.0)
        assert await recomputed() == before
        assert not [handle for handle in three.instances if "span_lost" in handle.last_log()]
        await driver.settled()


async def test_an_instance_serves_without_a_gmanager(checkpoint, expect, tmp_path):
    settings = {"model": str(checkpoint), "instance_id": "solo", "kv_tokens": 512, "dtype": "float32", "threads": 1}
    nobody = {"gmanager": "tcp://127.0.0.1:9"}
    command = launch.command("instance", settings | nobody)
    handle = InstanceHandle("instance solo", command, tmp_path / "log", launch.environment())
    try:
        await asyncio.to_thread(wait_ready, [handle], time.monotonic() + 60)
        prompt = prompt_ids(100, seed=1)
        async with AsyncClient(handle.address) as client:
            out = await client.submit(prompt, SamplingParams(max_tokens=8, temperature=0.0))
            expect(prompt, list(out.token_ids), 8)
            assert [one["state"] for one in (await client.status())["instances"]] == ["ready"]
        assert "no gManager answers" in handle.last_log()
        handle.signal(signal.SIGTERM)
        assert await exit_of(handle) == 0
    finally:
        handle.close()
