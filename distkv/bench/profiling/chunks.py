"""Prefill chunks, and what links do with their queries. What is compared is measured one after the other."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from distkv.bench.harness.command import Say
from distkv.bench.profiling.engine import Engine, Timing, chunk, medians_of
from distkv.bench.profiling.fitting import LEAST_S, Remote, remote_of
from distkv.bench.profiling.plan import Budget, Sizes, widest_first

READ_BLOCKS = 64
FEWEST = 3
LARGEST_SHARE, LARGEST_STEPS = 0.3, 20
"""Of all the time, for about so many steps of the largest chunk, which are the fewest that tell what it takes alone and
with a creditor, by either link. A model for which the sizes are too large for that is measured with smaller ones."""


class Chunked(msgspec.Struct, frozen=True):
    """By tokens of a chunk, seconds of all layers: without attention; the attention of each key; as the first, of a
    chunk that sends queries, without waiting for partials; and until these come."""

    alone: Mapping[int, float]
    each: Mapping[int, float]
    asking: Mapping[int, float]
    remote: Mapping[int, Remote]


class ByNetwork(msgspec.Struct, frozen=True):
    """How much longer than by the host's link partials come, in a layer: those of one row, and of each more."""

    first_s: float
    row_s: float
    read_bytes_per_s: float


class Chunks:
    """Measures chunks of the debtor, one size after the other, and both kinds of links."""

    def __init__(
        self, debtor: Engine, creditor: Engine, sizes: Sizes, lent_blocks: int, budget: Budget, say: Say
    ) -> None:
        self._debtor, self._creditor, self._sizes = debtor, creditor, sizes
        self._budget, self._say = budget, say
        self._block_tokens = debtor.ready.block_tokens
        self._read_blocks = min(READ_BLOCKS, lent_blocks)

    async def measure(self) -> Chunked:
        """The sizes that there is time for, at least the smallest and the largest that is not too long; those without a
        creditor first, for all prompts are computed by them."""
        sizes = self._sizes
        context = sizes.context_tokens[len(sizes.context_tokens) // 2]
        timed = {tokens: await self._alone(tokens, context) for tokens in sizes.chunks[:2]}
        most = self._most_tokens(timed)
        local, remote = (
            widest_first([tokens for tokens in chunks if tokens in timed or tokens <= most])
            for chunks in (sizes.chunks, sizes.remote_chunks)
        )
        needed = *local[:2], *remote[:2]
        for tokens in dict.fromkeys((*needed, *local, *remote)):
            if tokens not in timed and (tokens in needed or not self._budget.is_spent):
                timed[tokens] = await self._alone(tokens, context)
        each = {tokens: max(LEAST_S, (behind_s - first_s) / context) for tokens, (first_s, behind_s) in timed.items()}
        alone = {tokens: first_s - each[tokens] * (tokens + 1) / 2 for tokens, (first_s, _) in timed.items()}
        asking, remotes = {}, {}
        for tokens in remote:
            if tokens in each and not (self._budget.is_spent and tokens not in needed):
                self._say(f"prefill chunks of {tokens:,} tokens with a creditor")
                asking[tokens], remotes[tokens] = await self._ask(tokens, each[tokens])
        return Chunked(alone, each, asking, remotes)

    async def read_bytes_per_s(self) -> float:
        """Of rBlocks over the link that there is."""
        return await self._debtor.read(self._creditor, self._read_blocks, 0)

    async def by_network(self, layers: int, rows: int) -> ByNetwork:
        """By TCP, as it is on this machine, with chunks of one row and of so many, more than one. The host's link is
        there before and afterwards."""
        self._say("links by TCP")
        waits = []
        for by_network in (False, True):
            await self._debtor.link(self._creditor, by_network=by_network)
            waits.append([await self._wait_s(count) for count in (1, rows)])
        read_bytes_per_s = await self.read_bytes_per_s()
        await self._debtor.link(self._creditor, by_network=False)
        one_s, all_s = (max(0.0, there - here) / layers for here, there in zip(*waits, strict=True))
        row_s = max(0.0, all_s - one_s) / (rows - 1)
        return ByNetwork(max(0.0, one_s - row_s), row_s, read_bytes_per_s)

    async def _alone(self, tokens: int, context: int) -> tuple[float, float]:
        """What a chunk takes as the first, and behind so many tokens."""
        self._say(f"prefill chunks of {tokens:,} tokens")
        return (await self._timing(tokens, 0)).step_s, (await self._timing(tokens, context)).step_s

    def _most_tokens(self, timed: Mapping[int, tuple[float, float]]) -> float:
        """Of the largest chunk that there is time for, as far as the smallest and the next one tell."""
        (few, (_, few_s)), (more, (_, more_s)) = timed.items()
        token_s = (more_s - few_s) / (more - few)
        return LARGEST_SHARE * self._budget.total_s / LARGEST_STEPS / token_s if token_s > 0 else math.inf

    async def _ask(self, tokens: int, key_s: float) -> tuple[float, Remote]:
        """Of a chunk that sends queries: what it takes besides attention and waiting; and until partials come."""
        hidden_s = key_s * (self._block_tokens + (tokens + 1) / 2)
        asking_s, waits = 0.0, []
        for index, blocks in enumerate(spans(self._sizes, self._block_tokens)):
            if index > 1 and self._budget.is_spent:
                break
            timing = await self._timing(tokens, (blocks + 1) * self._block_tokens, blocks)
            waits.append((blocks * self._block_tokens, timing.wait_s))
            if index == 0:
                asking_s = timing.own_s - hidden_s
        return asking_s, remote_of(waits, hidden_s)

    async def _wait_s(self, tokens: int) -> float:
        """How long a chunk of so many tokens waits for partials over the smallest span that is measured."""
        blocks = self._sizes.remote_tokens[0] // self._block_tokens
        return (await self._timing(tokens, (blocks + 1) * self._block_tokens, blocks)).wait_s

    async def _timing(self, tokens: int, context: int, remote_blocks: int = 0) -> Timing:
        seqs = chunk(
            tokens,
            context,
            self._block_tokens,
            first_slot=0,
            remote_blocks=remote_blocks,
            creditor=self._creditor.name,
        )
        return medians_of(await self._debtor.time(seqs, self._is_enough))

    def _is_enough(self, steps: int, seconds: float) -> bool:
        return steps + 1 >= FEWEST and (seconds >= self._sizes.chunk_s or self._budget.is_spent)


def spans(sizes: Sizes, block_tokens: int) -> tuple[int, ...]:
    """Sizes of spans in rBlocks, one first."""
    return tuple(tokens // block_tokens for tokens in widest_first((block_tokens, *sizes.remote_tokens)))
