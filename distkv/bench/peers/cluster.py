"""distkv as a contender: one instance, streamed through the Python client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from distkv.bench.peers.cases import Answer
from distkv.client.async_client import AsyncClient
from distkv.client.local_cluster import LocalCluster
from distkv.types import SamplingParams


class OneInstance:
    """A LocalCluster of one instance with default settings, no gateway; `close` it."""

    def __init__(self, model: Path, threads: int, kv_tokens: int) -> None:
        self.settings = {"instances": 1, "threads": threads, "kv_tokens": kv_tokens, "gateway": False}
        self._cluster = LocalCluster(model, 1, kv_tokens, threads=threads, gateway=False)

    @property
    def pids(self) -> list[int]:
        """The instance and the gManager."""
        return [self._cluster.instances[0].pid, self._cluster.gmanager.pid]

    def ask(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Answer:
        """All prompts at once, greedily, end tokens ignored."""
        return asyncio.run(self._ask(prompts, max_tokens))

    def counters(self) -> Mapping[str, float]:
        """Counters of the instance since it started, as `distkv status --json` has them."""
        counters: Mapping[str, float] = self._cluster.status()["instances"][0]["counters"]
        return counters

    def close(self) -> None:
        """End the cluster."""
        self._cluster.close()

    async def _ask(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Answer:
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        answer = Answer([[] for _ in prompts], [[] for _ in prompts])

        async def one(client: AsyncClient, index: int, started: float) -> None:
            async for chunk in client.stream(list(prompts[index]), params):
                answer.times_s[index].extend([time.perf_counter() - started] * len(chunk.token_ids))
                answer.token_ids[index].extend(chunk.token_ids)

        async with AsyncClient(self._cluster.address) as client:
            await client.members()
            started = time.perf_counter()
            await asyncio.gather(*(one(client, index, started) for index in range(len(prompts))))
        return answer
