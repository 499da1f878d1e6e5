"""The choices of one HTTP request: each is a request to the cluster, and all run at the same time."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from distkv.errors import RequestFailed, RequestRefused
from distkv.gateway.operations.cluster import Cluster
from distkv.gateway.operations.metrics import Metrics
from distkv.types import Chunk, SamplingParams

# As of AsyncClient.generate: more would only wait in the instances' queues, where waiting has a limit.
MAX_AT_ONCE = 128
# Chunks that wait for a slow reader; then the choices wait too.
MAX_QUEUED = 64


@dataclass(frozen=True)
class Choice:
    """One output to be made, of the prompt number `prompt_index`.

    fits: max_tokens was not asked for, so less will do when the pool is smaller. only_prompt: the output, which must
    have a token, is not wanted.
    """

    index: int
    prompt_index: int
    prompt: list[int]
    params: SamplingParams
    fits: bool = False
    only_prompt: bool = False


@dataclass(frozen=True)
class Generation:
    """Runs choices on a cluster and measures them."""

    cluster: Cluster
    metrics: Metrics
    timeout_s: float

    async def chunks(self, choices: Sequence[Choice], request_id: str) -> AsyncGenerator[tuple[Choice, Chunk], None]:
        """Yield the output of all choices as it comes. Closing the generator cancels them; the first that fails
        cancels the others, and its error is raised (those of AsyncClient.stream)."""
        # Two requests with the same X-Request-Id must not meet in the cluster.
        name = f"{request_id}-{secrets.token_hex(4)}"
        if len(choices) == 1:
            async with aclosing(self._run(choices[0], name)) as chunks:
                async for chunk in chunks:
                    yield choices[0], chunk
            return
        queue: asyncio.Queue[tuple[Choice, Chunk] | Exception | None] = asyncio.Queue(MAX_QUEUED)
        places = asyncio.Semaphore(MAX_AT_ONCE)

        async def run(choice: Choice) -> None:
            try:
                async with places, aclosing(self._run(choice, f"{name}-{choice.index}")) as chunks:
                    async for chunk in chunks:
                        await queue.put((choice, chunk))
                await queue.put(None)
            except Exception as error:
                await queue.put(error)

        tasks = [asyncio.create_task(run(choice)) for choice in choices]
        running = len(tasks)
        try:
            while running:
                match await queue.get():
                    case None:
                        running -= 1
                    case Exception() as error:
                        raise error
                    case found:
                        yield found
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, choice: Choice, name: str) -> AsyncGenerator[Chunk, None]:
        params = choice.params
        with self.metrics.request(len(choice.prompt)) as record:
            for attempt in ("", "-again"):
                stream = self.cluster.stream(choice.prompt, params, name + attempt, self.timeout_s)
                try:
                    async with aclosing(stream) as chunks:
                        async for chunk in chunks:
                            record.chunk(chunk)
                            if chunk.finish_reason == "abort":
                                raise RequestFailed(True, "the cluster aborted the request")
                            yield _without_output(chunk) if choice.only_prompt else chunk
                    return
                except RequestRefused as refused:
                    room = refused.pool_tokens - len(choice.prompt)
                    if attempt or not choice.fits or not 0 < room < params.max_tokens:
                        raise
                # The pool has become smaller since max_tokens was chosen.
                params = msgspec.structs.replace(params, max_tokens=room)


def _without_output(chunk: Chunk) -> Chunk:
    ended = chunk.finish_reason and "length"
    return msgspec.structs.replace(chunk, token_ids=[], text="", logprobs=None, finish_reason=ended)
