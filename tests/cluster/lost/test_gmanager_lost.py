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
from distkv.config import MembershipSettings
from tests.checkpoints import prompt_ids
from tests.cluster.driving import Driver, driving, eventually, exit_of
from tests.cluster.lost.stall import stalled
from tests.conftest import LASTING

HEARTBEAT_S = MembershipSettings().heartbeat_s


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

        await eventually(lambda: _all_ready(driver), 30, "the gManager knows all instances again")
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

        await eventually(lambda: _all_ready(driver), 30, "the gManager calls all ready again")
        await driver.settled()


@pytest.mark.parametrize("how", ["stopped", "restarted"])
async def test_one_that_wakes_up_or_comes_back_costs_no_token(three, expect, how):
    """Else it calls instances dead of which it has read nothing yet, and these drop what lies there at its word."""

    async def recomputed() -> int:
        status = await driver.statuses()
        return sum(one.instance.counters.recomputed_tokens for one in status.values())

    async def serve() -> None:
        """A request that lies on several instances."""
        prompt = prompt_ids(1100, seed=7)
        expect(prompt, await driver.generate(prompt, 60, at="i0"), 60)

    async def serve_until_known() -> None:
        """One after the other, until each has said twice that it is there and the gManager calls all ready."""
        begun_s = time.monotonic()
        while time.monotonic() < begun_s + 2 * HEARTBEAT_S or not await _all_ready(driver):
            assert time.monotonic() < begun_s + 30, "the gManager does not call all ready"
            await serve()

    async with driving(three) as driver:
        await serve()
        before = await recomputed()
        if how == "stopped":
            async with stalled(three.gmanager.signal):
                await serve()
        else:
            three.gmanager.kill()
            await serve()
            three.restart_gmanager()
            LASTING.add(three.gmanager.pid)
        await serve_until_known()
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
        assert "no gManager answers" in (log := handle.last_log()) and "nothing listens there" in log
        handle.signal(signal.SIGTERM)
        assert await exit_of(handle) == 0
    finally:
        handle.close()


async def _all_ready(driver: Driver) -> bool:
    """Whether the gManager knows all three, and calls them ready."""
    statuses = await driver.statuses()
    return len(statuses) == 3 and all(status.instance.state == "ready" for status in statuses.values())
