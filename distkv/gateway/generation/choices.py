"""The choices of one HTTP request: each is a request to the cluster, and all run at the same time."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

import msgspec

from distkv.client.async_client import MAX_AT_ONCE
from distkv.client.owned_tasks import gather_limited
from distkv.client.prompts import TokenIds
from distkv.errors import RequestFailed, RequestRefused
from distkv.gateway.metrics.request_metrics import Fate, Metrics
from distkv.gateway.operations.cluster import Cluster
from distkv.types import Chunk, SamplingParams

MOST_ROWS = 32
"""Logprobs of so many tokens of a prompt are written in one turn of the event loop: about a millisecond."""
MOST_TEXT = 1024
"""So many characters are looked through for tool calls in one turn, a few microseconds each at most. There are more
when a reader was slow."""


@dataclass(frozen=True)
class Choice:
    """One output to be made, of the prompt number `prompt_index`.

    fits: the user set no max_tokens, so less will do when the pool is smaller. only_prompt: the output, which must have
    a token, is left out of the response. has_calls: its text is looked through for tool calls.
    """

    index: int
    prompt_index: int
    prompt: TokenIds
    params: SamplingParams
    fits: bool = False
    only_prompt: bool = False
    has_calls: bool = False


Deliver = Callable[[Choice, Chunk], Awaitable[None]]


@dataclass(frozen=True)
class Generation:
    """Runs choices on a cluster and measures them."""

    cluster: Cluster
    metrics: Metrics
    timeout_s: float

    async def run(self, choices: Sequence[Choice], request_id: str, deliver: Deliver) -> None:
        """Give the output of all choices to `deliver` as it comes; a choice goes on when its chunk is delivered.

        Cancelling it cancels all choices. The first that fails cancels the others, and its error is raised (those of
        AsyncClient.stream).
        """
        # Two requests with the same X-Request-Id must not meet in the cluster.
        name = f"{request_id}-{secrets.token_hex(4)}"
        fate = Fate()
        if len(choices) == 1:
            await self._run(choices[0], name, deliver, fate)
            return
        works = [partial(self._run, choice, f"{name}-{choice.index}", deliver, fate) for choice in choices]
        await gather_limited(works, MAX_AT_ONCE)

    async def _run(self, choice: Choice, name: str, deliver: Deliver, fate: Fate) -> None:
        params, timeout_s, now_s = choice.params, self.timeout_s, asyncio.get_running_loop().time
        ends_s = now_s() + timeout_s
        with self.metrics.request(len(choice.prompt), params.max_tokens, fate) as record:
            for suffix in ("", "-again"):
                try:
                    async with aclosing(self.cluster.stream(choice.prompt, params, name + suffix, timeout_s)) as chunks:
                        async for chunk in chunks:
                            record.chunk(chunk)
                            if chunk.finish_reason == "abort":
                                raise RequestFailed(True, "the cluster aborted the request")
                            for part in _in_parts(choice, chunk):
                                await deliver(choice, part)
                                if part.prompt_logprobs is not None or choice.has_calls:
                                    await asyncio.sleep(0)
                    return
                except (RequestRefused, RequestFailed) as short:
                    room = short.pool_tokens - len(choice.prompt)
                    timeout_s = ends_s - now_s()
                    if suffix or not choice.fits or not 0 < room < params.max_tokens or timeout_s <= 0:
                        raise
                # The pool has become smaller since max_tokens was chosen.
                params = params.of_length(room)


def _in_parts(choice: Choice, chunk: Chunk) -> Iterator[Chunk]:
    """What the response has of it, at most MOST_ROWS of the prompt in each part. Where calls are looked for, at most
    MOST_TEXT characters; tokens come with the first of them."""
    rows, text = chunk.prompt_logprobs, chunk.text
    if choice.only_prompt:
        chunk = _without_output(chunk)
    if rows is not None and len(rows) > MOST_ROWS:
        for start in range(0, len(rows), MOST_ROWS):
            yield msgspec.structs.replace(chunk, prompt_logprobs=rows[start : start + MOST_ROWS])
    elif choice.has_calls and len(text) > MOST_TEXT:
        yield msgspec.structs.replace(chunk, text=text[:MOST_TEXT], finish_reason=None, stop_reason=None)
        last = (len(text) - 1) // MOST_TEXT * MOST_TEXT
        for start in range(MOST_TEXT, last, MOST_TEXT):
            yield Chunk(chunk.request_id, text=text[start : start + MOST_TEXT])
        ended, why = chunk.finish_reason, chunk.stop_reason
        yield Chunk(chunk.request_id, text=text[last:], finish_reason=ended, stop_reason=why)
    else:
        yield chunk


def _without_output(chunk: Chunk) -> Chunk:
    ended = chunk.finish_reason and "length"
    return msgspec.structs.replace(chunk, token_ids=[], text="", logprobs=None, finish_reason=ended, stop_reason=None)
