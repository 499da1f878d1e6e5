"""Minutes of random requests, cancels and faults: every output right or a typed error, every block back at the end."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from random import Random

import pytest

from distkv import ClusterUnreachable, RequestFailed, RequestRefused
from tests.checkpoints import prompt_ids
from tests.cluster.driving import Driver, Running, driving, heal, signal_instance, worker_pid
from tests.conftest import LASTING

DURATION_S = 120.0
MAX_RUNNING = 8


class Soak:
    """One seeded history on one cluster. `told` keeps what was done, for whoever has to find out."""

    def __init__(self, driver: Driver, seed: int) -> None:
        self.driver = driver
        self.random = Random(seed)
        self.running: list[Running] = []
        self.outcomes: Counter[str] = Counter()
        self.told: list[str] = []
        self.started = time.monotonic()
        self.count = 0
        self.fault: asyncio.Task[None] | None = None

    def tell(self, what: str) -> None:
        self.told.append(f"{time.monotonic() - self.started:7.2f} {what}")

    async def act(self) -> None:
        """Draw one thing and do it; there is one fault at a time, and requests come and go meanwhile."""
        draw = self.random.random()
        if draw < 0.65:
            await self.submit()
        elif draw < 0.8:
            await self.cancel()
        elif self.fault is None:
            faults = [self.kill, self.kill, self.kill_worker, self.freeze, self.freeze, self.drain, self.lose_gmanager]
            self.fault = asyncio.create_task(self.random.choice(faults)())
        elif self.fault.done():
            await self.fault
            self.fault = None

    async def submit(self) -> None:
        if len(self.running) >= MAX_RUNNING:
            return
        length = self.random.choice([5, 30, 100, 300, 500, 900, 1300])
        self.count += 1
        run = await self.driver.start(prompt_ids(length, seed=self.count), self.random.randint(1, 60))
        self.tell(f"{run.request_id}: {length} + {run.params.max_tokens} tokens")
        self.running.append(run)

    async def cancel(self) -> None:
        if self.running:
            run = self.running.pop(self.random.randrange(len(self.running)))
            self.tell(f"cancel {run.request_id}")
            await run.cancel()
            self.outcomes["cancelled"] += 1

    def victim(self) -> str:
        return self.random.choice([h.instance_id for h in self.driver.cluster.instances])

    async def kill(self) -> None:
        name = self.victim()
        self.tell(f"kill {name}")
        self.driver.instance(name).kill()
        await self.mend()

    async def kill_worker(self) -> None:
        name = self.victim()
        self.tell(f"kill the worker of {name}")
        handle = self.driver.instance(name)
        os.kill(worker_pid(handle), signal.SIGKILL)
        await self.mend()

    async def drain(self) -> None:
        name = self.victim()
        self.tell(f"drain {name}")
        self.driver.instance(name).signal(signal.SIGTERM)
        await self.mend()

    async def freeze(self) -> None:
        name, seconds = self.victim(), self.random.choice([0.3, 1.5, 3.2, 6.0])
        self.tell(f"freeze {name} for {seconds} s")
        handle = self.driver.instance(name)
        signal_instance(handle, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        signal_instance(handle, signal.SIGCONT)

    async def lose_gmanager(self) -> None:
        self.tell("kill the gManager")
        self.driver.cluster.gmanager.kill()
        await asyncio.sleep(self.random.uniform(0, 3))
        await asyncio.to_thread(self.driver.cluster.restart_gmanager)
        LASTING.add(self.driver.cluster.gmanager.pid)

    async def mend(self) -> None:
        """Leave it for a moment, then start again what is gone."""
        await asyncio.sleep(self.random.uniform(0, 4))
        await asyncio.to_thread(heal, self.driver.cluster)
        self.tell("mended")

    async def collect(self, expect, *, all_of_them: bool) -> None:
        for run in [run for run in self.running if all_of_them or run.task.done()]:
            self.running.remove(run)
            try:
                tokens = await run.finished(90)
            except (RequestFailed, RequestRefused, ClusterUnreachable) as failed:
                assert not isinstance(failed, RequestFailed) or failed.retryable, failed
                # All instances together hold every request; those that were there at that moment may not.
                assert not isinstance(failed, RequestRefused) or failed.pool_tokens < failed.needed_tokens, failed
                self.tell(f"{run.request_id} failed: {failed}")
                self.outcomes["failed"] += 1
            else:
                await asyncio.to_thread(expect, run.prompt, tokens, run.params.max_tokens)
                self.outcomes["equal"] += 1


@pytest.mark.slow
@pytest.mark.timeout(DURATION_S + 240)
@pytest.mark.parametrize("seed", [1])
async def test_whatever_happens(four, expect, seed):
    async with driving(four) as driver:
        await driver.statuses()  # from here on the client knows the cluster, gManager or not
        soak = Soak(driver, seed)
        try:
            while time.monotonic() - soak.started < DURATION_S:
                await soak.act()
                await soak.collect(expect, all_of_them=False)
                await driver.statuses()  # checks
                await asyncio.sleep(soak.random.expovariate(5.0))
            if soak.fault is not None:
                await soak.fault
            await asyncio.to_thread(heal, four)
            await soak.collect(expect, all_of_them=True)
            await driver.settled()
            prompt = prompt_ids(1600, seed=seed)
            expect(prompt, await driver.generate(prompt, 16), 16)
        except BaseException:
            print("\n".join(soak.told))
            raise
        finally:
            if soak.fault is not None:
                soak.fault.cancel()
                await asyncio.wait((soak.fault,))
        assert soak.outcomes["equal"] > soak.outcomes["failed"], soak.outcomes
