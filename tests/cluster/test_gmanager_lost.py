"""The gManager dies and comes back: requests do not notice."""

from __future__ import annotations

import asyncio
import signal
import time

from distkv import AsyncClient, SamplingParams
from distkv.client import launch
from distkv.client.child import wait_ready
from distkv.client.local_cluster import InstanceHandle
from tests.checkpoints import prompt_ids
from tests.cluster.driving import driving, eventually, exit_of
from tests.conftest import LASTING


async def test_running_and_new_requests_outlive_it_and_its_ledger_is_rebuilt(three, expect):
    async with driving(three) as driver:
        running = await driver.start(prompt_ids(1000, seed=1), 300)
        await running.reached(5)
        three.gmanager.kill()
        # New ones too, also such that must borrow; the client that knew the cluster finds an instance itself.
        small, large = prompt_ids(100, seed=2), prompt_ids(600, seed=3)
        expect(small, await driver.generate(small, 8), 8)
        late = await driver.start(large, 8)
        three.restart_gmanager()
        LASTING.add(three.gmanager.pid)

        async def complete() -> bool:
            status = await driver.statuses()
            return len(status) == 3 and all(one.instance.state == "ready" for one in status.values())

        await eventually(complete, 5, "the gManager knows all instances again")
        assert not running.task.done()
        assert await driver.spans(running)
        expect(large, await late.finished(), 8)
        expect(running.prompt, await running.finished(), 300)
        # Borrowing goes through the new one.
        again = prompt_ids(1300, seed=4)
        expect(again, await driver.generate(again, 8), 8)
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
