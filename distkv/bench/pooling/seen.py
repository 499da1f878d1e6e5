"""A contender as it is played to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from distkv.bench.pooling.contenders import Contender
from distkv.bench.pooling.summary import at, counted, firsts_s, shorts, summary
from distkv.bench.workloads.replay import alone, replay
from distkv.sim.outcome import Outcome, Unloaded
from distkv.sim.trace import TraceRequest


class Seen:
    """A contender, and what was seen of it. firsts_s: times to first token, by rate and round; shorts_s: of short
    requests. served: of requests that no pool holds, how many of how many."""

    def __init__(self, contender: Contender, vocab: int, deadline_s: float, pool: int) -> None:
        self._contender, self._vocab, self._deadline_s, self._pool = contender, vocab, deadline_s, pool
        self.counts: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self.firsts_s: dict[float, list[list[float]]] = {}
        self.shorts_s: dict[float, list[list[float]]] = {}
        self.served = (0, 0)

    def alone(self, requests: Sequence[TraceRequest]) -> Unloaded:
        """What these take one after the other."""

        async def play() -> Unloaded:
            async with self._contender.serving() as generate:
                return await alone(generate, requests, self._vocab)

        return asyncio.run(play())

    def play(self, requests: Sequence[TraceRequest], rate: float, unloaded: Unloaded, seed: str) -> dict[str, float]:
        """The requests as they arrive: the cases of this rate."""

        async def play() -> list[Outcome]:
            async with self._contender.serving() as generate:
                return await replay(generate, requests, self._vocab, self._deadline_s, seed)

        before = self._contender.counters()
        outcomes = asyncio.run(play())
        after = self._contender.counters()
        if not (before and after):
            before = after = {}
        counts = {name: after[name] - before[name] for name in after}
        self.counts[f"{rate:g}/s"] = ", ".join(f"{name} {_number(count)}" for name, count in counts.items() if count)
        failed = Counter(one.failed for one in outcomes if one.failed)
        self.failed[f"{rate:g}/s"] = ", ".join(f"{count} {why}" for why, count in failed.items())
        for found_s, those in ((self.firsts_s, outcomes), (self.shorts_s, shorts(outcomes))):
            found_s.setdefault(rate, []).append(firsts_s(those, self._deadline_s))
        unheld = [one for one in outcomes if one.request.num_tokens > self._pool]
        served, sent = self.served
        self.served = served + sum(not one.failed for one in unheld), sent + len(unheld)
        found = dict(summary(outcomes, unloaded, self._deadline_s)) | dict(counted(before, after))
        return {at(case, rate): value for case, value in found.items()}


def _number(value: float) -> str:
    return f"{value:,.1f}" if value % 1 else f"{value:,.0f}"
