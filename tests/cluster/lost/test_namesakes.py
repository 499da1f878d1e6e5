"""Two processes under one name: one of them serves, the other ends, and none lives on unseen."""

from __future__ import annotations

import signal

import pytest

from distkv import StartupFailed
from tests.checkpoints import prompt_ids
from tests.cluster.driving import driving, eventually, exit_of, signal_instance
from tests.cluster.test_joining import started_beside

pytestmark = pytest.mark.slow


async def test_a_second_process_of_a_name_ends_while_the_first_lives(start, checkpoint, expect, tmp_path):
    cluster = start(2, 512)
    async with driving(cluster) as driver:
        run = await driver.start(prompt_ids(700, seed=1), 300, at="i0")
        await run.reached(1)
        with pytest.raises(StartupFailed, match=r"it exited with code 1: .*another process serves as i1"):
            await started_beside(cluster, tmp_path / "log", model=str(checkpoint), instance_id="i1")
        status = (await driver.statuses())["i1"].instance
        assert (status.state, status.pid) == ("ready", driver.instance("i1").pid)
        expect(run.prompt, await run.finished(), 300)
        await driver.settled()


async def test_one_that_was_replaced_while_it_stood_still_ends_when_it_wakes(start, checkpoint, expect, tmp_path):
    cluster = start(2, 512)
    async with driving(cluster) as driver:
        first = driver.instance("i1")
        signal_instance(first, signal.SIGSTOP)
        handle = None
        try:

            async def is_dead() -> bool:
                return (await driver.statuses())["i1"].instance.state == "dead"

            await eventually(is_dead, 30, "it is known to stand still")
            handle = await started_beside(cluster, tmp_path / "log", model=str(checkpoint), instance_id="i1")
            signal_instance(first, signal.SIGCONT)
            assert await exit_of(first, 30) == 1
            assert "another process serves as i1" in first.last_log()
            status = (await driver.statuses())["i1"].instance
            assert (status.state, status.pid) == ("ready", handle.pid)
            prompt = prompt_ids(700, seed=2)
            expect(prompt, await driver.generate(prompt, 8, at="i0"), 8)
            await driver.settled()
        finally:
            if first.alive:
                signal_instance(first, signal.SIGCONT)
            if handle is not None:
                handle.close()
