"""`python -m tests.loop_turns`: a real cluster, requests that once held its event loops, and the longest callbacks of
each process meanwhile, in CPU time of the thread: on a busy machine only cores that are slower then make it longer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx

from distkv import AsyncClient, LocalCluster, RequestRefused, SamplingParams
from tests.checkpoints import prompt_ids, variant

HOOK = Path(__file__).parent / "hook"
SHOWN = 3
MANY = 100_000
MOST = 4_100_000
AWHILE_S = 3.0
KINDS = ("gmanager", "instance", "gateway")


async def begun(work: Awaitable[object]) -> None:
    """Let it go on for a while, then cancel it."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(work, AWHILE_S)


class Attack:
    """Requests to one cluster."""

    def __init__(self, client: AsyncClient, http: httpx.AsyncClient) -> None:
        self.client, self.http = client, http

    async def many_ids(self) -> None:
        await begun(self.client.submit(prompt_ids(MANY)))

    async def most_ids(self) -> None:
        with contextlib.suppress(RequestRefused):
            await self.client.submit([5] * MOST)

    async def many_ids_in_128_choices(self) -> None:
        await begun(self.complete(prompt=prompt_ids(MANY), n=128))

    async def prompt_logprobs(self) -> None:
        await self.complete(prompt=prompt_ids(8000), max_tokens=1, prompt_logprobs=1)

    async def short_requests(self) -> None:
        params = SamplingParams(max_tokens=1)
        await asyncio.gather(*(self.client.submit([index + 1] * 8, params) for index in range(64) for _ in range(4)))

    async def short_requests_by_http(self) -> None:
        await asyncio.gather(*(self.complete(prompt=[index + 1] * 8, max_tokens=1) for index in range(64)))

    async def complete(self, **body: object) -> None:
        (await self.http.post("/v1/completions", json=body)).raise_for_status()


def turns(directory: Path, since_s: float) -> dict[str, list[tuple[float, str]]]:
    """The longest callbacks of each kind of process since then, in ms."""
    found: dict[str, list[tuple[float, str]]] = {}
    for path in directory.iterdir():
        command, *lines = path.read_text().splitlines()
        kind = next((kind for kind in KINDS if f"daemons.{kind}" in command), None)
        for line in lines if kind is not None else ():
            at_s, took_ms, name = line.split(" ", 2)
            if float(at_s) >= since_s:
                found.setdefault(str(kind), []).append((float(took_ms), name))
    return {kind: sorted(one, reverse=True)[:SHOWN] for kind, one in found.items()}


async def measure(cluster: LocalCluster, directory: Path) -> None:
    async with (
        AsyncClient(cluster.address) as client,
        httpx.AsyncClient(base_url=cluster.http_url, timeout=300.0) as http,
    ):
        attack = Attack(client, http)
        await attack.short_requests()
        works: list[Callable[[], Awaitable[None]]] = [
            attack.many_ids,
            attack.most_ids,
            attack.many_ids_in_128_choices,
            attack.prompt_logprobs,
            attack.short_requests,
            attack.short_requests_by_http,
        ]
        for work in works:
            began_s = time.monotonic()
            await work()
            await asyncio.sleep(1.0)
            print(work.__name__, flush=True)
            for kind, longest in sorted(turns(directory, began_s).items()):
                print(f"  {kind:9}", ", ".join(f"{ms:.1f} ms {name}" for ms, name in longest), flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place) / "turns"
        directory.mkdir()
        model = variant(Path(place), "llama", max_positions=200_000)
        os.environ["LOOP_TURNS"] = str(directory)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])])
        with LocalCluster(
            model, kv_tokens=160_000, dtype="float32", threads=1, log_dir=Path(place) / "logs"
        ) as cluster:
            asyncio.run(measure(cluster, directory))


if __name__ == "__main__":
    main()
