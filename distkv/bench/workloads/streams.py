"""Requests that generate while something else is measured, streamed through the Python client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import pairwise

from distkv.client.async_client import AsyncClient
from distkv.types import SamplingParams


class Streams:
    """Greedy streams of one client, end tokens ignored. prompts, tokens: of each stream; times_s: when each token
    came.

    Tasks that run them belong to `tasks`, and end with it at the latest.
    """

    def __init__(self, client: AsyncClient, tasks: asyncio.TaskGroup) -> None:
        self.prompts: list[list[int]] = []
        self.tokens: list[list[int]] = []
        self.times_s: list[list[float]] = []
        self._client, self._tasks = client, tasks
        self._running: list[asyncio.Task[None]] = []
        self._begun: list[asyncio.Event] = []
        self._arrived = asyncio.Event()

    def start(self, prompts: Sequence[list[int]], max_tokens: int) -> None:
        """Send these as well."""
        for prompt in prompts:
            tokens, times_s, begun = list[int](), list[float](), asyncio.Event()
            self.prompts.append(prompt)
            self.tokens.append(tokens)
            self.times_s.append(times_s)
            self._begun.append(begun)
            self._running.append(self._tasks.create_task(self._stream(prompt, max_tokens, tokens, times_s, begun)))

    async def begun(self) -> None:
        """Return when each has a token."""
        for event in self._begun:
            await event.wait()

    @property
    def least(self) -> int:
        """Tokens of the one that has fewest."""
        return min(map(len, self.times_s))

    async def reached(self, tokens: int) -> float:
        """Return when each has at least so many; the time."""
        while self.least < tokens:
            self._arrived.clear()
            await self._arrived.wait()
        return time.perf_counter()

    async def ended(self) -> None:
        """Return when each has all its tokens."""
        await asyncio.gather(*self._running)

    async def cancel(self) -> None:
        """End them all."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def intervals_s(self, begin_s: float, end_s: float) -> list[float]:
        """Times between tokens of the same stream that came between two moments."""
        return [
            later - earlier
            for times_s in self.times_s
            for earlier, later in pairwise(times_s)
            if begin_s <= earlier and later <= end_s
        ]

    def tokens_between(self, begin_s: float, end_s: float) -> int:
        """Of all streams together."""
        return sum(begin_s <= at_s < end_s for times_s in self.times_s for at_s in times_s)

    async def _stream(
        self, prompt: list[int], max_tokens: int, tokens: list[int], times_s: list[float], begun: asyncio.Event
    ) -> None:
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        async for chunk in self._client.stream(prompt, params):
            tokens.extend(chunk.token_ids)
            times_s.extend([time.perf_counter()] * len(chunk.token_ids))
            begun.set()
            self._arrived.set()


def prompt_of(vocab: int, tokens: int, seed: int) -> list[int]:
    """Token ids; another seed gives others."""
    return [1 + (seed * 7919 + index * 31) % (vocab - 1) for index in range(tokens)]
