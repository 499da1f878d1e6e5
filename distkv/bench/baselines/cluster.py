"""distkv as a contender: one instance, streamed through the Python client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from distkv.actors.task_scope import task_scope
from distkv.bench.baselines.cases import Answer, Case
from distkv.client.async_client import AsyncClient
from distkv.client.local.cluster import LocalCluster
from distkv.client.owned_tasks import gather_limited
from distkv.types import SamplingParams
from distkv.wire.messages.counters import Counters

OUTSIDE_TOKENS = 192


class OneInstance:
    """A LocalCluster of one instance with default settings, no gateway; `close` it."""

    def __init__(self, model: Path, threads: int, kv_tokens: int) -> None:
        self.settings = {"instances": 1, "threads": threads, "kv_tokens": kv_tokens, "gateway": False}
        self._cluster = LocalCluster(model, 1, kv_tokens, threads=threads, gateway=False)

    @property
    def pids(self) -> list[int]:
        """The instance and the gManager."""
        return [self._cluster.instances[0].pid, self._cluster.gmanager.pid]

    def generate(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Answer:
        """All prompts at once, greedily, end tokens ignored."""
        return asyncio.run(self._ask(prompts, max_tokens))

    def outside(self, case: Case, vocab: int, rounds: int) -> list[float]:
        """The share of a decode step of this case that is not model maths, once per round; rounds in which nothing
        could be counted have none."""
        found = (asyncio.run(self._outside(case.prompts(vocab, seed))) for seed in range(rounds))
        return [share for share in found if share is not None]

    def close(self) -> None:
        """End the cluster."""
        self._cluster.close()

    async def _ask(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Answer:
        answer = Answer([[] for _ in prompts], [[] for _ in prompts])
        async with AsyncClient(self._cluster.address) as client:
            await client.members()
            await self._stream(client, prompts, max_tokens, answer, asyncio.Event(), asyncio.Event())
        return answer

    async def _outside(self, prompts: Sequence[Sequence[int]]) -> float | None:
        """Between the moment when all prompts have a token and that when the first has all of its own: 1 - model time
        per step over time per token."""
        answer = Answer([[] for _ in prompts], [[] for _ in prompts])
        started, ended = asyncio.Event(), asyncio.Event()
        async with AsyncClient(self._cluster.address) as client, task_scope() as tasks:
            await client.members()
            streams = tasks.create_task(self._stream(client, prompts, OUTSIDE_TOKENS, answer, started, ended))
            await started.wait()
            before, first = await _counters(client), len(answer.times_s[0]) - 1
            await ended.wait()
            after, last = await _counters(client), len(answer.times_s[0]) - 1
            await streams
        steps = after.steps - before.steps
        if steps <= 0 or last <= first:
            return None
        period_s = (answer.times_s[0][last] - answer.times_s[0][first]) / (last - first)
        return 1 - (after.model_s - before.model_s) / steps / period_s

    async def _stream(
        self,
        client: AsyncClient,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        answer: Answer,
        started: asyncio.Event,
        ended: asyncio.Event,
    ) -> None:
        """All prompts at once into `answer`; `started` once all have a token, `ended` once one has all."""
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        sent_s = time.perf_counter()

        async def one(index: int) -> None:
            async for chunk in client.stream(list(prompts[index]), params):
                answer.times_s[index].extend([time.perf_counter() - sent_s] * len(chunk.token_ids))
                answer.token_ids[index].extend(chunk.token_ids)
                if not started.is_set() and all(answer.times_s):
                    started.set()
            ended.set()

        await gather_limited([partial(one, index) for index in range(len(prompts))], len(prompts))


async def _counters(client: AsyncClient) -> Counters:
    (status,) = await client.statuses()
    return status.instance.counters
