"""`distkv bench limits`: how long a creditor serves beyond its limit, and who pays for that (000 §4.6).

A debtor decodes with most of its keys and values at a creditor that had nothing else to do. Then the creditor gets
requests of its own, whose steps serving makes longer than it may. By turns with the same while nothing is lent.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click
import msgspec

from distkv.bench.baselines.checkpoints import MODELS, Model, checkpoint
from distkv.bench.harness.alternate import Samples, alternate_in_loop
from distkv.bench.harness.command import Measured, Say, benchmark, unit_of_name
from distkv.bench.harness.finite import FiniteRange
from distkv.bench.harness.report import Goal
from distkv.bench.workloads.planning import PlanningGManager, planned, until
from distkv.bench.workloads.streams import Streams, prompt_of
from distkv.client.async_client import AsyncClient
from distkv.client.local.cluster import LocalCluster
from distkv.types import SamplingParams
from distkv.wire.messages.to_client import Status

BLOCK_TOKENS = 16
OWN_PROMPT = 64
TIE = 1e-4
"""Two tokens whose log probabilities differ by less may change places by rounding."""
NAMES = DEBTOR, CREDITOR = "i0", "i1"
LENT, HOME = "beyond the limit", "nothing lent"
START_S = 30.0
"""For what is planned to have moved."""
SETTLE_S = 1.0
LOOK_S = 0.1
WINDOW_S = 1.0
"""Over which a share is measured, and a time per token."""
WITHIN_S = 3.0
"""So long it must be within the limit to be taken to stay there."""
MOST_S = 40.0
"""Of a turn: one that is beyond its limit for longer counts as that long."""
UNTIL, SAME = "until serving is within its limit, s", "tokens, % same"
OWN_FIRST, OWN_LAST = "creditor's time per token at first, ms", "creditor's time per token at last, ms"
RATE, BETWEEN = "debtor meanwhile, steps/s", "debtor's longest time between tokens, ms"
HELP = """How long a creditor that has requests of its own serves beyond its limit, what a token of theirs takes, and
what the debtor's requests lose while their rBlocks go home.

\b
Examples:
  distkv bench limits --json limits.json --plot limits.png
  distkv bench limits --quick
"""


class Size(msgspec.Struct, frozen=True):
    """How big the run is. batch: requests at each instance. blocks: of each of the debtor's that lie at the
    creditor. output: tokens of a request, more than it gets to."""

    model: Model
    batch: int
    blocks: int
    fraction: float
    output: int

    @property
    def context(self) -> int:
        """Tokens of the debtor's prompts."""
        return (self.blocks + 1) * BLOCK_TOKENS

    @property
    def pool_tokens(self) -> int:
        """Enough for all own requests, and for what is lent."""
        return 2 * self.batch * (self.context + self.output)


# Small weights and large keys and values: what is served outweighs the creditor's own steps.
FULL = Size(Model("served", hidden=512, layers=8, heads=8, kv_heads=8, inner=1024, vocab=2048), 4, 64, 0.1, 8192)
QUICK = Size(MODELS["tiny"], 2, 64, 0.02, 49152)


class Served(NamedTuple):
    """What a creditor had counted at some time: its own steps, and what of them served its debtors, all in s."""

    at_s: float
    step_s: float
    served_s: float


class Turns:
    """A debtor and a creditor, whose requests begin anew in each turn. given_back: rBlocks, of each turn."""

    def __init__(
        self, size: Size, gmanager: PlanningGManager, clients: Mapping[str, AsyncClient], tasks: asyncio.TaskGroup
    ) -> None:
        self._size, self._gmanager, self._clients, self._tasks = size, gmanager, clients, tasks
        self._tokens: dict[str, list[list[int]]] = {}
        self.given_back: list[int] = []

    async def lent(self) -> Mapping[str, float]:
        """While the debtor's rBlocks lie at the creditor."""
        if not self._tokens:
            await self.home()
        debtor = await self._begun(DEBTOR, self._size.context, 0)
        await self._lend()
        lent = self._lent()
        own = await self._begun(CREDITOR, OWN_PROMPT, self._size.batch)
        seen = await self._watched()
        self.given_back.append(lent - self._lent())
        found = self._found(debtor, own, seen[0].at_s, seen[-1].at_s)
        await self._ended(debtor, own)
        same = [await self._same(name, streams) for name, streams in ((DEBTOR, debtor), (CREDITOR, own))]
        return {UNTIL: within_after_s(seen, self._size.fraction)} | found | {SAME: 100 * min(same)}

    async def home(self) -> Mapping[str, float]:
        """While all of it lies at the debtor."""
        debtor = await self._begun(DEBTOR, self._size.context, 0)
        await asyncio.sleep(SETTLE_S)
        own = await self._begun(CREDITOR, OWN_PROMPT, self._size.batch)
        begun_s = time.perf_counter()
        await asyncio.sleep(WINDOW_S + WITHIN_S)
        ended_s = time.perf_counter()
        found = self._found(debtor, own, begun_s, ended_s)
        self._tokens = {DEBTOR: debtor.tokens, CREDITOR: own.tokens}
        await self._ended(debtor, own)
        return found

    async def _begun(self, name: str, context: int, seed: int) -> Streams:
        streams = Streams(self._clients[name], self._tasks)
        vocab = self._size.model.vocab
        prompts = [prompt_of(vocab, context, seed + index) for index in range(self._size.batch)]
        streams.start(prompts, self._size.output)
        await streams.begun()
        return streams

    async def _ended(self, *all_streams: Streams) -> None:
        for streams in all_streams:
            await streams.cancel()
        await until(lambda: not self._lent(), START_S)

    def _lent(self) -> int:
        return self._gmanager.debts().get((DEBTOR, CREDITOR), 0)

    async def _lend(self) -> None:
        """Have as many rBlocks of each of the debtor's requests lie at the creditor. It lends nothing for a while after
        it has reclaimed, so what is planned is planned again."""
        wanted = self._size.batch * self._size.blocks
        deadline_s = time.monotonic() + START_S
        while self._lent() < wanted:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"of {wanted} rBlocks that were planned to move {self._lent()} did")
            for request_id, lying in (await self._lying()).items():
                if lying < self._size.blocks:
                    self._gmanager.move(request_id, DEBTOR, self._size.blocks - lying, CREDITOR)
            await asyncio.sleep(SETTLE_S)

    async def _lying(self) -> Mapping[str, int]:
        """rBlocks at the creditor, by request of the debtor."""
        return {
            one.request_id: sum(span.num_tokens for span in one.spans if span.instance_id == CREDITOR) // BLOCK_TOKENS
            for one in (await self._status(DEBTOR)).requests
        }

    async def _status(self, name: str) -> Status:
        (found,) = [one for one in await self._clients[name].statuses() if one.instance.instance_id == name]
        return found

    async def _watched(self) -> list[Served]:
        """What the creditor counts, until serving has been within its limit for long enough, or as long as a turn may
        take."""
        seen: list[Served] = []
        while True:
            counters = (await self._status(CREDITOR)).instance.counters
            seen.append(Served(time.perf_counter(), counters.model_s, counters.step_serve_s))
            took_s = seen[-1].at_s - seen[0].at_s
            if took_s - within_after_s(seen, self._size.fraction) >= WITHIN_S or took_s >= MOST_S:
                return seen
            await asyncio.sleep(LOOK_S)

    def _found(self, debtor: Streams, own: Streams, begun_s: float, ended_s: float) -> dict[str, float]:
        between = debtor.intervals_s(begun_s, ended_s)
        return {
            OWN_FIRST: 1e3 * statistics.fmean(own.intervals_s(begun_s, begun_s + WINDOW_S)),
            OWN_LAST: 1e3 * statistics.fmean(own.intervals_s(ended_s - WINDOW_S, ended_s)),
            RATE: 1 / statistics.fmean(between),
            BETWEEN: 1e3 * max(between),
        }

    async def _same(self, name: str, streams: Streams) -> float:
        """Share of tokens that are those of the turn before in which nothing was lent, as far as both got, or up to
        where two tokens were as likely: from there on they are answers to different prompts."""
        same = compared = 0
        for prompt, ours, theirs in zip(streams.prompts, streams.tokens, self._tokens[name], strict=True):
            end = min(len(ours), len(theirs))
            equal = next((at for at in range(end) if ours[at] != theirs[at]), end)
            if equal < end and await self._is_tie(name, prompt + ours[:equal], {ours[equal], theirs[equal]}):
                end = equal
            same += sum(a == b for a, b in zip(ours[:end], theirs[:end], strict=True))
            compared += end
        return same / compared

    async def _is_tie(self, name: str, context: list[int], tokens: set[int]) -> bool:
        """Whether these two follow the context with the same probability, and no other does with a greater one."""
        output = await self._clients[name].submit(context, SamplingParams(max_tokens=1, temperature=0.0, logprobs=2))
        assert output.logprobs is not None
        first, second = output.logprobs[0].top
        return {first[0], second[0]} == tokens and first[1] - second[1] < TIE


def within_after_s(seen: Sequence[Served], limit: float) -> float:
    """How long after the first of these what serving takes of own steps, over WINDOW_S from then on, is within a limit
    for the first time; all of the time if it never is."""
    later = 0
    for first in seen:
        while later < len(seen) and seen[later].at_s < first.at_s + WINDOW_S:
            later += 1
        if later == len(seen):
            break
        last = seen[later]
        if last.served_s - first.served_s <= limit * (last.step_s - first.step_s):
            return first.at_s - seen[0].at_s
    return seen[-1].at_s - seen[0].at_s


def measure(say: Say, *, quick: bool, blocks: int | None, fraction: float | None, rounds: int) -> Measured:
    """Run it. Nothing that it started is left on return."""
    given = {"blocks": blocks, "fraction": fraction}
    size = msgspec.structs.replace(QUICK if quick else FULL, **{key: value for key, value in given.items() if value})
    cores = sorted(os.sched_getaffinity(0))[: len(NAMES)]
    with tempfile.TemporaryDirectory(prefix="distkv-bench-") as scratch:
        say("starting two instances")
        with LocalCluster(
            checkpoint(size.model, Path(scratch)),
            len(NAMES),
            size.pool_tokens,
            "float32",
            threads=1,
            block_size=BLOCK_TOKENS,
            gateway=False,
            log_level="warning",
            cpu_affinity=",".join(map(str, cores)),
            instance_options={"max_serve_fraction": size.fraction},
        ) as cluster:
            samples, turns = asyncio.run(_measured(cluster, size, rounds, say))
    model = size.model
    facts = {
        "cores_used": ",".join(map(str, cores)),
        "model": f"random Llama, {model.layers} layers of {model.hidden}, {model.kv_heads} KV heads, float32, 1 thread "
        "per instance",
        "decoding": f"{size.batch} requests from {size.context:,} tokens on at the debtor, {size.batch} from "
        f"{OWN_PROMPT} on at the creditor",
        "lent": f"{size.batch * size.blocks} rBlocks of {BLOCK_TOKENS} tokens",
        "given_back": ", ".join(map(str, turns.given_back)),
        "limit": f"--max-serve-fraction {size.fraction:g}",
        "contenders": {
            LENT: "planned there while the creditor had nothing else to do",
            HOME: "the same requests, all of their rBlocks at home",
        },
    }
    return Measured(samples, _goals(samples), facts)


async def _measured(cluster: LocalCluster, size: Size, rounds: int, say: Say) -> tuple[Samples, Turns]:
    async with planned(cluster, START_S) as (gmanager, clients, tasks):
        turns = Turns(size, gmanager, clients, tasks)
        samples = await alternate_in_loop({LENT: turns.lent, HOME: turns.home}, rounds, report=say)
    return samples, turns


def _goals(samples: Samples) -> tuple[Goal, ...]:
    until_s, same = samples[UNTIL][LENT], samples[SAME][LENT]
    longest_s, least = max(until_s), min(same)
    return (
        Goal(
            "serving is within its limit again in each turn",
            f"within {MOST_S:g} s",
            f"{longest_s:.1f} s",
            longest_s < MOST_S,
        ),
        Goal("tokens are those of nothing lent", "100 %", f"{least:.4g} %", least == 100),
    )


main = benchmark(
    "limits",
    measure,
    HELP,
    [
        click.Option(["--blocks"], type=click.IntRange(min=4), help="rBlocks of each request at the creditor."),
        click.Option(
            ["--fraction"], type=FiniteRange(0, 1, min_open=True, max_open=True), help="The creditor's limit."
        ),
    ],
    unit_of=unit_of_name,
    packages=("torch", "pyzmq"),
    rounds=(5, 1),
)
