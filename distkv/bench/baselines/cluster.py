"""distkv as a contender: one instance, streamed through the Python client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distkv.actors.task_scope import task_scope
from distkv.bench.baselines.cases import Answer, Case
from distkv.bench.workloads.streams import Streams
from distkv.client.async_client import AsyncClient
from distkv.client.local.cluster import LocalCluster
from distkv.wire.messages.counters import Counters

OUTSIDE_TOKENS, COUNTED_TOKENS = 192, 176
"""Of each prompt, to count what is not model maths; and until when: all of them decode until then."""
PROMPTS_FIRST = 1e9
"""Of mixed_step_ratio: prompts that come together decode together. Else the first of eight has ended before the last
one's first token, for prompts give way to decodes."""


class OneInstance:
    """A LocalCluster of one instance that computes prompts before it decodes, no gateway; `close` it."""

    def __init__(self, model: Path, threads: int, kv_tokens: int) -> None:
        self.settings: dict[str, Any] = {"instances": 1, "threads": threads, "kv_tokens": kv_tokens, "gateway": False}
        self.settings["mixed_step_ratio"] = PROMPTS_FIRST
        self._cluster = LocalCluster(
            model, 1, kv_tokens, threads=threads, gateway=False, instance_options={"mixed_step_ratio": PROMPTS_FIRST}
        )

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
        async with AsyncClient(self._cluster.address) as client, task_scope() as tasks:
            await client.members()
            streams, sent_s = Streams(client, tasks), time.perf_counter()
            streams.start([list(prompt) for prompt in prompts], max_tokens)
            await streams.ended()
        return Answer(streams.tokens, [[at_s - sent_s for at_s in times_s] for times_s in streams.times_s])

    async def _outside(self, prompts: Sequence[Sequence[int]]) -> float | None:
        """Between the moment when all prompts have a token and that when they have COUNTED_TOKENS: 1 - model time per
        step over time per token."""
        async with AsyncClient(self._cluster.address) as client, task_scope() as tasks:
            await client.members()
            streams = Streams(client, tasks)
            streams.start([list(prompt) for prompt in prompts], OUTSIDE_TOKENS)
            times_s = streams.times_s[0]
            await streams.begun()
            before, first = await _counters(client), len(times_s) - 1
            await streams.reached(COUNTED_TOKENS)
            after, last = await _counters(client), len(times_s) - 1
            await streams.ended()
        steps = after.steps - before.steps
        if steps <= 0 or last <= first:
            return None
        period_s = (times_s[last] - times_s[first]) / (last - first)
        return 1 - (after.model_s - before.model_s) / steps / period_s


async def _counters(client: AsyncClient) -> Counters:
    (status,) = await client.statuses()
    return status.instance.counters
