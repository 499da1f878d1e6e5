"""The instance that owns a request dies, drains, or its client goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from distkv import RequestFailed, RequestRefused
from tests.checkpoints import prompt_ids
from tests.cluster.driving import driving, eventually, exit_of, failure_of


async def test_started_streams_fail_as_retryable_and_creditors_get_their_memory_back(four, expect):
    async with driving(four) as driver:
        owned = [await driver.start(prompt_ids(1000, seed=1), 300, at="i0")]
        await owned[0].reached(3)
        other = await driver.start(prompt_ids(100, seed=2), 200, at="i1")
        await other.reached(1)
        driver.instance("i0").kill()
        for run in owned:
            assert (await failure_of(run)).retryable
        expect(other.prompt, await other.finished(), 200)
        await driver.settled()


async def test_a_request_without_output_goes_elsewhere(four, expect):
    """Sent through the gManager, it is sent again when its instance dies before the first token."""
    async with driving(four) as driver:
        async with driver.frozen(*(handle.instance_id for handle in four.instances)):  # so that it has no output
            run = await driver.start(prompt_ids(900, seed=1), 16)

            async def owner() -> str:
                for name, status in (await driver.statuses()).items():
                    if any(request.request_id == run.request_id for request in status.requests):
                        return name
                return ""

            driver.instance(await eventually(owner, 8, "somebody owns it")).kill()
        assert not run.tokens
        expect(run.prompt, await run.finished(), 16)
        await driver.settled()


async def test_sigterm_of_an_owner_lets_its_requests_finish(four, expect):
    async with driving(four) as driver:
        run = await driver.start(prompt_ids(1000, seed=1), 150, at="i0")
        await run.reached(3)
        os.kill(driver.instance("i0").pid, signal.SIGTERM)
        other = prompt_ids(300, seed=2)
        expect(other, await driver.generate(other, 8), 8)
        expect(run.prompt, await run.finished(), 150)
        assert await exit_of(driver.instance("i0")) == 0
        await driver.settled()


async def test_sigterm_of_a_creditor_moves_what_it_holds(four, expect):
    async with driving(four) as driver:
        run = await driver.start(prompt_ids(900, seed=1), 500, at="i0")
        async with driver.frozen_at(run, 3, "i0"):
            creditor = await driver.creditor(run)
            before = (await driver.statuses())["i0"].instance.counters.recomputed_tokens
        async with driver.slowed("i0"):
            os.kill(driver.instance(creditor).pid, signal.SIGTERM)
            assert await exit_of(driver.instance(creditor)) == 0
            assert not run.task.done()
            assert creditor not in await driver.spans(run)
        expect(run.prompt, await run.finished(), 500)
        assert (await driver.statuses())["i0"].instance.counters.recomputed_tokens == before
        await driver.settled()


@pytest.mark.slow
async def test_sigterm_of_a_creditor_when_nobody_has_room(start, expect):
    """What it holds cannot go anywhere: it stays until its time is up, and then the request waits or fails typed."""
    cluster = start(2, 512, shutdown_timeout_s=1.0, request_timeout_s=2.0)
    async with driving(cluster) as driver:
        run = await driver.start(prompt_ids(900, seed=1), 100, at="i0")
        await run.reached(3)
        os.kill(driver.instance("i1").pid, signal.SIGTERM)
        assert await exit_of(driver.instance("i1")) == 0
        if len(run.tokens) < 100:
            assert (await failure_of(run)).retryable
        await driver.settled()


async def test_what_can_never_fit_is_refused_with_the_numbers(three):
    async with driving(three) as driver:

        async def refused_for_good() -> RequestRefused | None:
            run = await driver.start(prompt_ids(1500, seed=1), 100)
            with pytest.raises((RequestRefused, RequestFailed)) as ended:
                await run.finished()
            return ended.value if isinstance(ended.value, RequestRefused) else None  # else others may join yet

        refused = await eventually(refused_for_good, 30, "the member list settles")
        assert refused.needed_tokens == 1600
        assert refused.pool_tokens == 512 + 2 * (512 - 16)
        await driver.settled()


OWNER = """
import sys, time
from distkv import LocalCluster
cluster = LocalCluster(sys.argv[1], instances=2, kv_tokens=256, gateway=False, log_dir=sys.argv[2])
print(cluster.gmanager.pid, *(i.pid for i in cluster.instances), flush=True)
time.sleep(100)
"""


def test_a_cluster_ends_with_the_process_that_owns_it(checkpoint, tmp_path):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(checkpoint), str(tmp_path / "logs")], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    with owner.stdout:
        pids = [int(pid) for pid in owner.stdout.readline().split()]
    assert len(pids) == 3
    processes = [p for pid in pids for p in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))]
    assert len(processes) == 5
    owner.kill()
    owner.wait()
    _gone, left = psutil.wait_procs(processes, timeout=30)
    assert not [p for p in left if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
