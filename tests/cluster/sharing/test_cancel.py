"""A request is cancelled at any moment: every block comes back, and nothing hangs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from random import Random

import pytest

from tests.checkpoints import prompt_ids
from tests.cluster.driving import Driver, driving, failure_of

GONE = "nothing was heard of its client for 10 s"
FROZEN_S = 2.0

CLIENT = """
import sys
from distkv import Client, SamplingParams
with Client(sys.argv[1]) as client:
    prompt = [int(token) for token in sys.argv[2].split(",")]
    for chunk in client.stream(prompt, SamplingParams(max_tokens=400, temperature=0.0)):
        print("token", flush=True)
"""


async def cancel_after(driver: Driver, length: int, seed: int, delay_s: float) -> None:
    run = await driver.start(prompt_ids(length, seed=seed), 200)
    await asyncio.wait((run.task,), timeout=delay_s)
    await run.cancel()


async def test_one_after_another_from_the_queue_to_decode(three, expect):
    """Prefill takes a few tenths of a second here: these moments fall into every stage."""
    async with driving(three) as driver:
        for step in range(20):
            await cancel_after(driver, 1200, step, 0.02 * step)
        again = prompt_ids(1300, seed=4)
        expect(again, await driver.generate(again, 8), 8)
        await driver.settled()


async def test_many_at_once_while_others_go_on(three, expect):
    random = Random(5)
    async with driving(three) as driver:
        staying = [await driver.start(prompt_ids(n, seed=n), 60) for n in (30, 300)]
        await asyncio.gather(
            *(
                cancel_after(driver, random.choice([20, 200, 700, 1100]), index, random.uniform(0, 2.0))
                for index in range(24)
            )
        )
        for run in staying:
            expect(run.prompt, await run.finished(), 60)
        await driver.settled()


async def test_a_client_killed_mid_stream_leaves_nothing(three):
    prompt = ",".join(map(str, prompt_ids(1000, seed=1)))
    async with driving(three) as driver:
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CLIENT, three.address, prompt, stdout=subprocess.PIPE
        )
        try:
            assert client.stdout is not None
            async with asyncio.timeout(60):
                assert await client.stdout.readline() == b"token\n"
        finally:
            client.kill()
            await client.communicate()
        await driver.settled()


@pytest.mark.slow
async def test_a_client_too_busy_to_say_that_it_is_there_is_told(three):
    """Its loop stands still for longer than an instance waits; the request is gone then, and it hears so."""
    async with driving(three) as driver:
        instance = driver.instance("i0")
        said = instance.log_path.stat().st_size
        run = await driver.start(prompt_ids(100, seed=1), 1390, at="i0")
        await run.reached(1)
        deadline_s = time.monotonic() + 60.0
        while GONE.encode() not in instance.log_path.read_bytes()[said:]:
            assert time.monotonic() < deadline_s
            # The worker stands still for most of the time, and so does not end the request before.
            async with driver.frozen("i0"):
                time.sleep(FROZEN_S)  # noqa: ASYNC251 - blocking the loop is the point
            time.sleep(0.05)  # noqa: ASYNC251
        failed = await failure_of(run, 30)
        assert failed.retryable
        assert GONE in failed.reason
        await driver.settled()
