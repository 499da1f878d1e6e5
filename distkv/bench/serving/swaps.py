"""`distkv bench swaps`: what a run of DGFM costs those that decode meanwhile (000 §4.5).

Two instances of one core each decode all the time, and each has rBlocks of one request at the other one. By turns these
are swapped home, freeze → swap → thaw, or left where they are for as long.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import click
import msgspec

from distkv import events
from distkv.bench.baselines.checkpoints import MODELS, checkpoint
from distkv.bench.harness.alternate import Samples, alternate_in_loop, median_interval, paired_ratio
from distkv.bench.harness.command import Measured, Say, benchmark, unit_of_name
from distkv.bench.harness.report import Goal, judged
from distkv.bench.swap_cells.window import Window, beside_case, parts_between, rate_case
from distkv.bench.workloads.planning import PlanningGManager, planned
from distkv.bench.workloads.streams import Streams, prompt_of
from distkv.client.async_client import AsyncClient
from distkv.client.local.cluster import LocalCluster
from distkv.wire.messages.to_client import Status

BLOCK_TOKENS = 16
MOST_OUTPUT = 16384
"""Of a request: more than it gets to."""
NAMES = "i0", "i1"
SWAPPED, LEFT = "swapped home", "left at the other"
RUN_S = 20.0
"""For a run to begin, and to end."""
SETTLE_S = 1.0
"""For moves to have ended, and heartbeats to have said so."""
AFTER_S, PAUSE_S = 1.0, 0.2
LEAST_S = 0.5
"""Of a window: a run may be over before there are tokens."""
LEAST_RATE, MOST_BESIDE = 0.98, 2.0
HOME = "rBlocks that came home, % home"
HELP = """Decode throughput of two instances that have borrowed from each other while that is swapped home by DGFM,
beside leaving it where it is; the processor time that takes, and what is faster afterwards.

\b
Examples:
  distkv bench swaps --json swaps.json --plot swaps.png
  distkv bench swaps --quick
"""


class Size(msgspec.Struct, frozen=True):
    """How big the run is. batch: requests at each instance, from `context` tokens on. blocks: that each owes."""

    model: str
    batch: int
    context: int
    blocks: int

    @property
    def pool_tokens(self) -> int:
        """Enough for all own requests, and for what is lent."""
        return self.batch * (self.context + MOST_OUTPUT) + 2 * self.blocks * BLOCK_TOKENS


FULL = Size("b", 4, 2080, 128)
QUICK = Size("tiny", 2, 1056, 64)


class Pair:
    """Two instances, each with a batch of streams of its own. runs: how long each run of DGFM was, s."""

    def __init__(self, size: Size, gmanager: PlanningGManager, pids: Mapping[str, tuple[int, int]]) -> None:
        """pids: of rManager and worker, by instance."""
        self._size, self._gmanager, self._pids = size, gmanager, pids
        self._streams: dict[str, Streams] = {}
        self._clients: Mapping[str, AsyncClient] = {}
        self._requests: dict[str, str] = {}
        self._window_s = 2.0
        self.runs: list[float] = []
        self.failed: list[str] = []

    async def begin(self, clients: Mapping[str, AsyncClient], tasks: asyncio.TaskGroup) -> None:
        """Start all streams, and return when each has a token."""
        self._clients = clients
        for seed, (name, client) in enumerate(clients.items()):
            self._streams[name] = streams = Streams(client, tasks)
            prompts = [self._prompt(self._size.batch * seed + index) for index in range(self._size.batch)]
            streams.start(prompts, MOST_OUTPUT)
        for streams in self._streams.values():
            await streams.begun()
        self._requests = {name: one.requests[0].request_id for name, one in (await self._statuses()).items()}

    async def end(self) -> None:
        """Cancel all streams."""
        for streams in self._streams.values():
            await streams.cancel()

    async def swapped(self) -> Mapping[str, float]:
        """While a run brings home what each owes."""
        await self._owe()
        owed = sum(self._gmanager.debts().values())
        self._gmanager.let_swap(NAMES, is_allowed=True)
        await self._next_run()
        before = await self._statuses()
        window = Window(self._streams, self._pids)
        ended = await self._next_run()
        assert isinstance(ended, events.DgfmEnded), "two runs of one cycle at once"
        self._gmanager.let_swap(NAMES, is_allowed=False)
        ran_s = window.so_far_s
        await asyncio.sleep(max(0.0, LEAST_S - ran_s))
        found = window.end()
        self._window_s = window.took_s
        self.runs.append(ran_s)
        if ended.why:
            self.failed.append(ended.why)
        found |= parts_between(before, await self._statuses())
        return {**found, **await self._after(), HOME: 100 * ended.blocks / owed}

    async def left(self) -> Mapping[str, float]:
        """For as long, while what each owes stays where it is."""
        await self._owe()
        before = await self._statuses()
        window = Window(self._streams, self._pids)
        await asyncio.sleep(self._window_s)
        found = window.end() | parts_between(before, await self._statuses())
        return {**found, **await self._after()}

    async def _owe(self) -> None:
        """Have rBlocks of each one's oldest request lie at the other. A plan that was just made also keeps instances
        from bringing them home by themselves."""
        deadline_s = time.monotonic() + RUN_S
        is_planned = False
        while not (is_planned and self._is_owing()):
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"what was planned did not move: {self._gmanager.debts()}")
            for debtor, creditor in (NAMES, NAMES[::-1]):
                missing = self._size.blocks - self._gmanager.debts().get((debtor, creditor), 0)
                if missing > 0 or not is_planned:
                    self._gmanager.move(self._requests[debtor], debtor, max(1, missing), creditor)
            is_planned = True
            await asyncio.sleep(SETTLE_S)

    def _prompt(self, seed: int) -> list[int]:
        return prompt_of(MODELS[self._size.model].vocab, self._size.context, seed)

    async def _statuses(self) -> Mapping[str, Status]:
        return {one.instance.instance_id: one for one in await self._clients[NAMES[0]].statuses()}

    def _is_owing(self) -> bool:
        owed = self._gmanager.debts()
        return len(owed) == len(NAMES) and min(owed.values()) >= self._size.blocks

    async def _next_run(self) -> events.DgfmBegun | events.DgfmEnded:
        async with asyncio.timeout(RUN_S):
            return await self._gmanager.runs.get()

    async def _after(self) -> Mapping[str, float]:
        await asyncio.sleep(PAUSE_S)
        window = Window(self._streams, self._pids)
        await asyncio.sleep(AFTER_S)
        return {rate_case(name, "afterwards"): rate for name, rate in window.rates().items()}


def measure(say: Say, *, quick: bool, batch: int | None, blocks: int | None, rounds: int) -> Measured:
    """Run it. Nothing that it started is left on return."""
    size = QUICK if quick else FULL
    given = {"batch": batch, "blocks": blocks}
    size = msgspec.structs.replace(size, **{name: value for name, value in given.items() if value})
    if size.blocks * BLOCK_TOKENS >= size.context:
        size = msgspec.structs.replace(size, context=(size.blocks + 1) * BLOCK_TOKENS)
    cores = sorted(os.sched_getaffinity(0))[: len(NAMES)]
    with tempfile.TemporaryDirectory(prefix="distkv-bench-") as scratch:
        model = checkpoint(MODELS[size.model], Path(scratch))
        say("starting two instances")
        with LocalCluster(
            model,
            len(NAMES),
            size.pool_tokens,
            threads=1,
            block_size=BLOCK_TOKENS,
            gateway=False,
            log_level="warning",
            cpu_affinity=",".join(map(str, cores)),
        ) as cluster:
            samples, pair = asyncio.run(_measured(cluster, size, rounds, say))
    facts = {
        "cores_used": ",".join(map(str, cores)),
        "model": f"random Llama {size.model}, bfloat16, 1 thread per instance",
        "decoding": f"{size.batch} requests from {size.context:,} tokens on at each instance",
        "owed": f"{size.blocks} rBlocks of {BLOCK_TOKENS} tokens each way",
        "runs_s": ", ".join(f"{one:.2f}" for one in pair.runs),
        "came_to_nothing": "; ".join(pair.failed),
        "contenders": {
            SWAPPED: "by a gManager of policy contract, with default settings",
            LEFT: "for as long as the run before, of the same two instances",
        },
    }
    return Measured(samples, _goals(samples), facts)


async def _measured(cluster: LocalCluster, size: Size, rounds: int, say: Say) -> tuple[Samples, Pair]:
    workers = {one["instance_id"]: int(one["worker_pid"]) for one in cluster.status()["instances"]}
    pids = {one.instance_id: (one.pid, workers[one.instance_id]) for one in cluster.instances}
    async with planned(cluster, RUN_S) as (gmanager, clients, tasks):
        gmanager.let_swap(NAMES, is_allowed=False)
        pair = Pair(size, gmanager, pids)
        say("computing the KV of their requests")
        await pair.begin(clients, tasks)
        samples = await alternate_in_loop({SWAPPED: pair.swapped, LEFT: pair.left}, rounds, report=say)
        await pair.end()
    return samples, pair


def _goals(samples: Samples) -> tuple[Goal, ...]:
    found = []
    for name in NAMES:
        rates = samples[rate_case(name, "meanwhile")]
        goal = f"decode throughput of {name} while its debts are swapped, beside leaving them"
        found.append(judged(goal, paired_ratio(rates[SWAPPED], rates[LEFT]), least=LEAST_RATE))
        beside = samples[beside_case(name)]
        more = [a - b for a, b in zip(beside[SWAPPED], beside[LEFT], strict=True)]
        found.append(judged(f"% of its core that swapping takes {name}", median_interval(more), most=MOST_BESIDE))
    return tuple(found)


main = benchmark(
    "swaps",
    measure,
    HELP,
    [
        click.Option(["--batch"], type=click.IntRange(min=1), help="Requests that each instance decodes."),
        click.Option(["--blocks"], type=click.IntRange(min=4), help="rBlocks that each has at the other one."),
    ],
    unit_of=unit_of_name,
    packages=("torch", "pyzmq"),
    rounds=(12, 2),
)
