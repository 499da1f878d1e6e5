"""A trace played to a cluster: each request is sent when it arrives, through the Python client, and streamed."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence

import msgspec

from distkv.actors.task_scope import task_scope
from distkv.bench.workloads.trace import TraceRequest
from distkv.client.async_client import AsyncClient
from distkv.errors import DistKVError
from distkv.types import SamplingParams


class Outcome(msgspec.Struct):
    """What became of a request. times_s: when each token came, from when it was due. failed: why it did not end."""

    request: TraceRequest
    times_s: list[float]
    failed: str = ""

    @property
    def first_s(self) -> float:
        """Time to first token."""
        return self.times_s[0]

    @property
    def per_token_s(self) -> float | None:
        """Mean time between its tokens; None if there is one at most."""
        if len(self.times_s) < 2:
            return None
        return (self.times_s[-1] - self.times_s[0]) / (len(self.times_s) - 1)


class Unloaded(msgspec.Struct, frozen=True):
    """What requests take that are alone: the time to first token as a line over the prompt, the time per token."""

    first_s: float
    first_s_per_token: float
    per_token_s: float

    def serves(self, outcome: Outcome) -> bool:
        """Whether a request was served as goodput wants: first token within five times the time alone and a second,
        each further one within twice the time alone."""
        if outcome.failed or not outcome.times_s:
            return False
        alone_s = self.first_s + self.first_s_per_token * outcome.request.prompt_tokens
        in_time = outcome.first_s <= 5 * alone_s + 1.0
        return in_time and (outcome.per_token_s or 0.0) <= 2 * self.per_token_s


async def replay(address: str, requests: Sequence[TraceRequest], vocab: int, deadline_s: float) -> list[Outcome]:
    """All of them, each for `deadline_s` at most from when it is due; in the order of `requests`."""
    async with AsyncClient(address) as client, task_scope() as tasks:
        await client.members()
        begun_s = time.perf_counter()
        running = [
            tasks.create_task(_serve(client, one, seed, vocab, begun_s + one.arrival_s, deadline_s))
            for seed, one in enumerate(requests)
        ]
        return [await task for task in running]


async def alone(address: str, requests: Sequence[TraceRequest], vocab: int) -> Unloaded:
    """What requests take one after the other."""
    outcomes: list[Outcome] = []
    async with AsyncClient(address) as client:
        await client.members()
        for seed, one in enumerate(requests):
            outcomes.append(await _serve(client, one, seed, vocab, time.perf_counter(), None))
            if outcomes[-1].failed:
                raise DistKVError(f"a request of {one.num_tokens:,} tokens alone: {outcomes[-1].failed}")
    lengths = [float(one.prompt_tokens) for one in requests]
    slope, first_s = 0.0, statistics.fmean(one.first_s for one in outcomes)
    if len(set(lengths)) > 1:
        slope, first_s = statistics.linear_regression(lengths, [one.first_s for one in outcomes])
    per_token_s = statistics.median(one.per_token_s for one in outcomes if one.per_token_s is not None)
    return Unloaded(max(0.0, first_s), max(0.0, slope), per_token_s)


async def _serve(
    client: AsyncClient, request: TraceRequest, seed: int, vocab: int, due_s: float, deadline_s: float | None
) -> Outcome:
    outcome = Outcome(request, [])
    draw = random.Random(seed)
    prompt = [draw.randrange(1, vocab) for _ in range(request.prompt_tokens)]
    params = SamplingParams(max_tokens=request.output_tokens, temperature=0.0, ignore_eos=True)
    await asyncio.sleep(due_s - time.perf_counter())
    try:
        async with asyncio.timeout(deadline_s):
            async for chunk in client.stream(prompt, params):
                outcome.times_s.extend([time.perf_counter() - due_s] * len(chunk.token_ids))
    except DistKVError as error:
        outcome.failed = type(error).__name__
    except TimeoutError:
        outcome.failed = "deadline"
    return outcome
