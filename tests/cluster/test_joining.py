"""Who may join: one cluster serves one model."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

import pytest

from distkv import RequestRefused, StartupFailed
from distkv.client.local import launch
from distkv.client.local.child import wait_ready
from distkv.client.local.cluster import InstanceHandle
from distkv.demo.random_checkpoint import make_checkpoint
from tests.checkpoints import prompt_ids
from tests.cluster.driving import Running, driving, eventually, exit_of


async def started_beside(cluster, log, **settings) -> InstanceHandle:
    common = {"instance_id": "new", "kv_tokens": 512, "dtype": "float32", "threads": 1, "gmanager": cluster.address}
    handle = InstanceHandle("instance new", launch.command("instance", common | settings), log, launch.environment())
    try:
        await asyncio.to_thread(wait_ready, [handle], time.monotonic() + 60)
    except BaseException:
        handle.close()
        raise
    return handle


@pytest.mark.parametrize(
    "change",
    ["weights", pytest.param("dtype", marks=pytest.mark.slow), pytest.param("block size", marks=pytest.mark.slow)],
)
async def test_another_model_is_refused_with_the_reason(three, checkpoint, expect, tmp_path, change):
    settings: dict[str, Any] = {"model": str(checkpoint)}
    if change == "weights":
        settings["model"] = str(make_checkpoint(tmp_path / "other", layers=3, vocab=320, seed=1))
    elif change == "dtype":
        settings["dtype"] = "bfloat16"
    else:
        settings["block_size"] = 32
    with pytest.raises(StartupFailed, match=rf"it exited with code 1(.|\n)* {change} \S+ \(not \S+\).*; one cluster"):
        await started_beside(three, tmp_path / "log", **settings)
    async with driving(three) as driver:
        ready = {name for name, status in (await driver.statuses()).items() if status.instance.state == "ready"}
        assert ready == {"i0", "i1", "i2"}
        prompt = prompt_ids(1300, seed=9)
        expect(prompt, await driver.generate(prompt, 8), 8)
        await driver.settled()


async def test_a_new_instance_lends_at_once_and_leaves_in_good_order(three, checkpoint, expect, tmp_path):
    async with driving(three) as driver:
        handle = await started_beside(three, tmp_path / "log", model=str(checkpoint))
        try:
            prompt = prompt_ids(1800, seed=9)

            async def served() -> Running | None:
                run = await driver.start(prompt, 8, at="i0")
                try:
                    await run.finished()
                except RequestRefused:
                    return None  # i0 is told of members when the new one is ready already
                return run

            run = await eventually(served, 30, "i0 knows the new one")
            expect(prompt, run.tokens, 8)
            assert await driver.places(run) == {"i0", "i1", "i2", "new"}
            os.kill(handle.pid, signal.SIGTERM)
            assert await exit_of(handle) == 0

            async def left() -> bool:
                return (await driver.statuses())["new"].instance.state == "left"

            await eventually(left, 30, "it is known to have left")
            await driver.settled()
        finally:
            handle.close()
