"""A process stands still for five seconds, as one does that is swapped out or debugged: no request ends of it, and what
is only said of others costs no token."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from distkv import AsyncClient, SamplingParams
from distkv.client.local import launch
from distkv.client.local.child import wait_ready
from distkv.client.local.cluster import InstanceHandle
from tests.checkpoints import prompt_ids
from tests.cluster.driving import Driver, driving, eventually, signal_instance
from tests.cluster.lost.stall import STALL_S, stalled

pytestmark = pytest.mark.slow


async def recomputed(driver: Driver) -> int:
    return sum(status.instance.counters.recomputed_tokens for status in (await driver.statuses()).values())


async def all_ready(driver: Driver) -> bool:
    """Of those that run; tests before may have left the entries of some that ended."""
    statuses = await driver.statuses()
    return all(statuses[handle.instance_id].instance.state == "ready" for handle in driver.cluster.instances)


def spans_lost(log_dir: Path) -> int:
    return sum(log.read_text(errors="replace").count("span_lost") for log in log_dir.glob("*.log"))


async def test_a_stalled_gmanager_costs_no_token(three, expect):
    """Else it finds everyone else dead in the first heartbeat it reads: 6 spans lost, 784 tokens recomputed."""
    async with driving(three) as driver:
        before, lost = await recomputed(driver), spans_lost(three.log_dir)
        async with stalled(three.gmanager.signal) as over:
            while not over.done():
                prompt = prompt_ids(700, seed=1)
                expect(prompt, await driver.generate(prompt, 100, at="i0"), 100)
            run = await driver.start(prompt_ids(700, seed=2), 700, at="i0")
            async with driver.frozen_at(run, 20, "i0"):
                assert await driver.creditor(run)
        await eventually(lambda: all_ready(driver), 30, "the gManager calls all ready again")
        expect(run.prompt, await run.finished(), 700)
        assert await recomputed(driver) == before and spans_lost(three.log_dir) == lost
        await driver.settled()


async def test_a_stalled_owner_or_creditor_ends_no_request(four, expect):
    """Its lease runs out meanwhile, and what it held is computed again; the stream goes on as if nothing had been."""
    async with driving(four) as driver:
        for index, name in enumerate(("i0", "a creditor")):
            run = await driver.start(prompt_ids(1000, seed=index), 400, at="i0")
            async with driver.frozen_at(run, 5, "i0"):
                who = await driver.creditor(run) if name == "a creditor" else name
            async with stalled(lambda signum, who=who: signal_instance(driver.instance(who), signum)):
                pass
            expect(run.prompt, await run.finished(), 400)
            await eventually(lambda: all_ready(driver), 30, "the gManager calls all ready again")
            await driver.settled()


async def test_a_stalled_gateway_loses_no_stream(start):
    """Instances go on sending; what has no room in the gateway's socket must not end the connection."""
    cluster = start(2, 1024, gateway=True)
    prompts = [prompt_ids(100 + index, seed=index) for index in range(4)]
    texts = ["" for _ in prompts]
    began = [asyncio.Event() for _ in prompts]
    common = {"max_tokens": 700, "temperature": 0, "ignore_eos": True}

    async def stream(index: int) -> None:
        body = {"model": model, "prompt": prompts[index], "stream": True} | common
        async with client.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    assert "error" not in event, event
                    texts[index] += "".join(choice["text"] for choice in event["choices"])
                    began[index].set()

    async with httpx.AsyncClient(base_url=cluster.http_url, timeout=60) as client, asyncio.timeout(90):
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        async with asyncio.TaskGroup() as tasks:
            for index in range(len(prompts)):
                tasks.create_task(stream(index))
            for event in began:
                await event.wait()
            async with stalled(cluster.gateway.signal):
                pass
        for prompt, text in zip(prompts, texts, strict=True):
            whole = await client.post("/v1/completions", json={"model": model, "prompt": prompt} | common)
            assert text == whole.json()["choices"][0]["text"]


class Pair:
    """Two gManagers and three instances that know both."""

    def __init__(self, checkpoint: Path, directory: Path) -> None:
        self.log_dir = directory
        self.gmanagers = [self._spawn("gmanager", f"gmanager-{index}", {"port": 0}) for index in range(2)]
        wait_ready(self.gmanagers, time.monotonic() + 30)
        self.addresses = [gmanager.address for gmanager in self.gmanagers]
        settings = {
            "model": str(checkpoint),
            "kv_tokens": 512,
            "dtype": "float32",
            "threads": 1,
            "validate_state": True,
        }
        settings |= {"gmanager": ",".join(self.addresses)}
        self.instances = [self._spawn("instance", f"i{n}", settings | {"instance_id": f"i{n}"}) for n in range(3)]
        wait_ready(self.instances, time.monotonic() + 60)

    def _spawn(self, kind: str, name: str, settings: dict[str, object]) -> InstanceHandle:
        return InstanceHandle(name, launch.command(kind, settings), self.log_dir / f"{name}.log", launch.environment())

    def restart_first(self) -> None:
        """The first gManager comes back where it was; the second stands by again."""
        self.gmanagers[0].close()
        port = int(self.addresses[0].rpartition(":")[2])
        self.gmanagers[0] = self._spawn("gmanager", "gmanager-0-again", {"port": port})
        wait_ready(self.gmanagers[:1], time.monotonic() + 30)

    def close(self) -> None:
        for child in (*self.instances, *self.gmanagers):
            child.close()


@pytest.fixture
def pair(checkpoint: Path, tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(checkpoint, tmp_path)
    yield pair
    pair.close()


async def test_two_gmanagers_one_stalled_one_back_cost_no_token(pair, expect):
    """The other may know instances as they were while they loaded; were it believed, nothing would fit any more.
    Peers that it calls dead, though they are not, and nobody has borrowed from, are linked to anew when wanted."""
    prompt = prompt_ids(700, seed=1)
    sampling = SamplingParams(max_tokens=100, temperature=0.0)
    async with AsyncClient(pair.instances[0].address) as client:

        async def serve_for(seconds: float) -> None:
            over = asyncio.create_task(asyncio.sleep(seconds))
            while not over.done():
                expect(prompt, list((await client.submit(prompt, sampling)).token_ids), 100)

        await serve_for(1.0)
        async with stalled(pair.gmanagers[0].signal):
            await serve_for(STALL_S)
        await serve_for(1.0)
        pair.gmanagers[0].kill()
        await serve_for(1.0)
        await asyncio.to_thread(pair.restart_first)
        await serve_for(STALL_S)
        statuses = await client.statuses()
        assert [status.instance.state for status in statuses] == ["ready"] * 3
        assert sum(status.instance.counters.recomputed_tokens for status in statuses) == 0
        assert spans_lost(pair.log_dir) == 0
    for address in pair.addresses:
        async with AsyncClient(address) as asker:
            assert [member.state for member in await asker.members()] == ["ready"] * 3
