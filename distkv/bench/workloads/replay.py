"""A trace played to who serves it: each request is sent when it arrives, and streamed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence

from distkv.actors.task_scope import task_scope
from distkv.client.async_client import AsyncClient
from distkv.errors import DistKVError
from distkv.sim.outcome import DEADLINE, Outcome, Unloaded
from distkv.sim.token_times import TokenTimes
from distkv.sim.trace import TraceRequest
from distkv.types import SamplingParams

Generate = Callable[[list[int], int], AsyncIterator[int]]
"""A prompt and how many tokens to generate, end tokens ignored; yields how many came, whenever some do. Raises
DistKVError when it will not or cannot."""


@contextlib.asynccontextmanager
async def through_client(address: str) -> AsyncIterator[Generate]:
    """Of a cluster of distkv, through the Python client."""
    async with AsyncClient(address) as client:
        await client.members()

        async def generate(prompt: list[int], max_tokens: int) -> AsyncIterator[int]:
            params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
            async for chunk in client.stream(prompt, params):
                yield len(chunk.token_ids)

        yield generate


async def replay(
    generate: Generate, requests: Sequence[TraceRequest], vocab: int, deadline_s: float, seed: str
) -> list[Outcome]:
    """All of them, each for `deadline_s` at most from when it is due; in the order of `requests`. seed: another one
    gives other prompts, so that nobody knows them from before."""
    prompts = [_prompt(one, vocab, f"{seed} {index}") for index, one in enumerate(requests)]
    async with task_scope() as tasks:
        begun_s = time.perf_counter()
        running = [
            tasks.create_task(_serve(generate, one, prompt, begun_s + one.arrival_s, deadline_s))
            for one, prompt in zip(requests, prompts, strict=True)
        ]
        return [await task for task in running]


async def alone(generate: Generate, requests: Sequence[TraceRequest], vocab: int) -> Unloaded:
    """What requests take one after the other."""
    outcomes: list[Outcome] = []
    for index, one in enumerate(requests):
        prompt = _prompt(one, vocab, f"alone {index}")
        outcomes.append(await _serve(generate, one, prompt, time.perf_counter(), None))
        if outcomes[-1].failed:
            raise DistKVError(f"a request of {one.num_tokens:,} tokens alone: {outcomes[-1].failed}")
    return Unloaded.of(outcomes)


def _prompt(request: TraceRequest, vocab: int, seed: str) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(1, vocab) for _ in range(request.prompt_tokens)]


async def _serve(
    generate: Generate, request: TraceRequest, prompt: list[int], due_s: float, deadline_s: float | None
) -> Outcome:
    outcome = Outcome(request, TokenTimes())
    await asyncio.sleep(due_s - time.perf_counter())
    try:
        async with asyncio.timeout(deadline_s):
            async for count in generate(prompt, request.output_tokens):
                outcome.times_s.extend([time.perf_counter() - due_s] * count)
    except DistKVError as error:
        outcome.failed = type(error).__name__
    except TimeoutError:
        outcome.failed = DEADLINE
    return outcome
