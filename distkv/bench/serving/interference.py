"""`distkv bench interference`: what the prefill of a long prompt does to running decodes, and they to it.

One instance with a batch of decodes, to which a long prompt comes. The time between tokens of the decodes beside it
stands with that just before and just after it; prefill beside them with prefill alone. The same with prefill in chunks
as large as a step holds shows what small chunks cost and what they are good for.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from distkv.actors.task_scope import task_scope
from distkv.bench.harness.alternate import Samples, alternate, paired_ratio
from distkv.bench.harness.command import Measured, Say, benchmark
from distkv.bench.harness.quantile import p99
from distkv.bench.harness.report import Goal, at_least
from distkv.bench.harness.timing.processes import cpu_seconds
from distkv.bench.workloads.streams import Streams, prompt_of
from distkv.client.async_client import AsyncClient
from distkv.client.local.cluster import LocalCluster
from distkv.demo.random_checkpoint import make_checkpoint

VOCAB = 2048
MODEL: dict[str, Any] = {
    "hidden": 256,
    "layers": 2,
    "heads": 8,
    "kv_heads": 1,
    "inner": 1024,
    "vocab": VOCAB,
    "dtype": "bfloat16",
}
MOST_OUTPUT = 16384
"""Of a decode: more than it gets to."""
UNLIMITED = 1e9
ALONE, ADAPTIVE, WHOLE = "alone", "chunks that adapt", "chunks of 2,048"
MEDIAN, HIGH = "time between tokens, median", "time between tokens, p99"
PREFILL, WORK = "prefill", "work of both"
UNITS = {MEDIAN: "ms", HIGH: "ms", PREFILL: "tokens/s", WORK: "of alone"}
MOST_RATIO, LEAST_WORK = 2.0, 0.9
HELP = """Time between the tokens of running decodes while a long prompt is prefilled, beside the time without, and how
fast it is prefilled. Work of both: the processor time that prefill and these decodes would have taken the engine alone,
over what they took together.

\b
Examples:
  distkv bench interference --json interference.json --plot interference.png
  distkv bench interference --quick
"""


class Size(msgspec.Struct, frozen=True):
    """How big the run is. prompt_tokens: of the long prompt."""

    decodes: int
    context: int
    prompt_tokens: int
    window_s: float

    @property
    def pool_tokens(self) -> int:
        """Enough for all of it."""
        return self.prompt_tokens + 1024 + self.decodes * (self.context + MOST_OUTPUT)


FULL = Size(32, 4096, 32768, 4.0)
QUICK = Size(4, 64, 2048, 0.5)


class Alone(msgspec.Struct):
    """The long prompt while nothing else runs: its prefill took so much time of the worker's processor."""

    cpu_s: float = 0.0


class Arrival:
    """A long prompt comes to an instance. say: hears what begins."""

    def __init__(self, cluster: LocalCluster, size: Size, say: Say) -> None:
        (instance,) = cluster.status()["instances"]
        self._address, self._worker, self._size, self._say = cluster.address, int(instance["worker_pid"]), size, say

    def alone(self, alone: Alone) -> Mapping[str, float]:
        """While nothing else runs; `alone` is what it was then."""
        self._say(f"the prompt of {self._size.prompt_tokens:,} alone")
        began_s = cpu_seconds(self._worker)
        took_s = asyncio.run(self._alone())
        alone.cpu_s = cpu_seconds(self._worker) - began_s
        return {PREFILL: self._size.prompt_tokens / took_s}

    def beside(self, alone: Alone) -> Mapping[str, float]:
        """While others decode."""
        return asyncio.run(self._beside(alone))

    async def _alone(self) -> float:
        async with AsyncClient(self._address) as client, task_scope() as tasks:
            await client.members()
            return await self._prefill(Streams(client, tasks))

    async def _prefill(self, streams: Streams) -> float:
        begun_s = time.perf_counter()
        streams.start([prompt_of(VOCAB, self._size.prompt_tokens, 1)], 1)
        await streams.ended()
        return time.perf_counter() - begun_s

    async def _beside(self, alone: Alone) -> Mapping[str, float]:
        size = self._size
        async with AsyncClient(self._address) as client, task_scope() as tasks:
            await client.members()
            decodes = Streams(client, tasks)
            self._say(f"starting {size.decodes} decodes of {size.context:,} tokens")
            decodes.start([prompt_of(VOCAB, size.context, seed + 2) for seed in range(size.decodes)], MOST_OUTPUT)
            await decodes.begun()
            watch = Watch(decodes, self._worker)
            self._say("decodes alone, then a prompt beside them")
            before = await watch.during(asyncio.sleep(size.window_s))
            beside = await watch.during(self._prefill(Streams(client, tasks)))
            after = await watch.during(asyncio.sleep(size.window_s))
            await decodes.cancel()
        quiet = [decodes.intervals_s(*window.between) for window in (before, after)]
        stretched = decodes.intervals_s(*beside.between)
        decode_s = (before.cpu_s + after.cpu_s) / (before.tokens + after.tokens)
        begun_s, ended_s = beside.between
        return {
            f"{MEDIAN}, {ALONE}": 1e3 * statistics.fmean(map(statistics.median, quiet)),
            f"{HIGH}, {ALONE}": 1e3 * statistics.fmean(map(p99, quiet)),
            MEDIAN: 1e3 * statistics.median(stretched),
            HIGH: 1e3 * p99(stretched),
            PREFILL: size.prompt_tokens / (ended_s - begun_s),
            WORK: (alone.cpu_s + decode_s * beside.tokens) / beside.cpu_s,
        }


class Window(msgspec.Struct, frozen=True):
    """What happened between two moments: tokens of the decodes, processor time of the worker."""

    between: tuple[float, float]
    tokens: int
    cpu_s: float


class Watch:
    """Of decodes, and of the worker that computes them."""

    def __init__(self, decodes: Streams, worker: int) -> None:
        self._decodes, self._worker = decodes, worker

    async def during(self, work: Awaitable[object]) -> Window:
        """Until `work` is done."""
        begun_s, cpu_s = time.perf_counter(), cpu_seconds(self._worker)
        await work
        between = begun_s, time.perf_counter()
        return Window(between, max(1, self._decodes.tokens_between(*between)), cpu_seconds(self._worker) - cpu_s)


def measure(say: Say, *, quick: bool, decodes: int | None, context: int | None, rounds: int) -> Measured:
    """Run it."""
    size = QUICK if quick else FULL
    size = msgspec.structs.replace(size, decodes=decodes or size.decodes, context=context or size.context)
    with tempfile.TemporaryDirectory(prefix="distkv-bench-") as scratch:
        model = make_checkpoint(Path(scratch) / "model", **MODEL)
        say("starting two instances, one cluster each")
        start = partial(LocalCluster, model, 1, size.pool_tokens, threads=1, gateway=False, log_level="warning")
        with start() as adaptive, start(instance_options={"mixed_step_ratio": UNLIMITED}) as whole:
            here, there = Arrival(adaptive, size, say), Arrival(whole, size, say)
            prefill = Alone()
            found = alternate(
                {
                    ALONE: partial(here.alone, prefill),
                    ADAPTIVE: partial(here.beside, prefill),
                    WHOLE: partial(there.beside, prefill),
                },
                rounds,
                warmups=0,
                report=say,
            )
    samples = _by_case(found)
    facts = {
        "model": "random Llama, " + ", ".join(f"{name} {value}" for name, value in MODEL.items()),
        "batch": f"{size.decodes} decodes from {size.context:,} tokens on, a prompt of {size.prompt_tokens:,}",
        "contenders": {
            ADAPTIVE: "LocalCluster, one thread, Python client, default settings",
            WHOLE: "the same with --mixed-step-ratio 1e9",
        },
    }
    return Measured(samples, _goals(samples), facts)


def _by_case(found: Samples) -> Samples:
    """What decodes did alone, before and after, is a variant of its own: in the first cluster, where all is default."""
    cases: Samples = {}
    for case in (MEDIAN, HIGH):
        cases[case] = {ALONE: found[f"{case}, {ALONE}"][ADAPTIVE], **found[case]}
    cases[PREFILL] = found[PREFILL]
    cases[WORK] = found[WORK]
    return cases


def _goals(samples: Samples) -> tuple[Goal, ...]:
    stretched = paired_ratio(samples[HIGH][ADAPTIVE], samples[HIGH][ALONE])
    prefill = paired_ratio(samples[PREFILL][ADAPTIVE], samples[PREFILL][ALONE])
    work, whole = samples[WORK][ADAPTIVE], samples[WORK][WHOLE]
    return (
        Goal(
            "time between tokens of decodes beside prefill to that without, p99",
            f"at most {MOST_RATIO:g}",
            str(stretched),
            stretched.value <= MOST_RATIO,
        ),
        at_least(
            "throughput of prefill and decodes to that with chunks of 2,048", paired_ratio(work, whole), LEAST_WORK
        ),
        at_least(
            "throughput of prefill and decodes to that of each alone", paired_ratio(work, [1.0] * len(work)), LEAST_WORK
        ),
        Goal(
            "prefill beside decodes to prefill alone",
            "measured",
            str(prefill),
            None,
            "steps of at most twice the time leave prefill half of it",
        ),
    )


main = benchmark(
    "interference",
    measure,
    HELP,
    [
        click.Option(["--decodes"], type=click.IntRange(min=1), help="Sequences that decode."),
        click.Option(["--context"], type=click.IntRange(min=1), help="Tokens that each begins with."),
    ],
    unit_of=lambda case: UNITS[case.removesuffix(f", {ALONE}")],
    packages=("torch", "pyzmq"),
    rounds=(1, 1),
)
