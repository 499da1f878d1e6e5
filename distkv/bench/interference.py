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
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from distkv.actors.task_scope import task_scope
from distkv.bench.harness.alternate import Samples, alternate, paired_ratio
from distkv.bench.harness.command import Measured, Say, benchmark
from distkv.bench.harness.machine import machine_facts, versions_of
from distkv.bench.harness.report import Goal, Report, at_least, results
from distkv.bench.workloads.streams import Streams
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
fast it is prefilled. Work of both: the rates of prefill and of decodes, each as a share of its rate alone, added up.

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


FULL = Size(24, 2048, 32768, 4.0)
QUICK = Size(4, 64, 2048, 0.5)


class Arrival:
    """A long prompt comes to an instance. decode_shares: what decodes kept of their rate, a value per round."""

    def __init__(self, address: str, size: Size) -> None:
        self._address, self._size = address, size

    def beside(self, alone_s: list[float]) -> Mapping[str, float]:
        """While others decode. alone_s: how long its prefill took alone, the last one counts."""
        return asyncio.run(self._beside(alone_s))

    def alone(self, alone_s: list[float]) -> Mapping[str, float]:
        """While nothing else runs; notes in `alone_s` how long it took."""
        alone_s.append(asyncio.run(self._alone()))
        return {PREFILL: self._size.prompt_tokens / alone_s[-1]}

    async def _alone(self) -> float:
        async with AsyncClient(self._address) as client, task_scope() as tasks:
            await client.members()
            return await self._prefill(Streams(client, tasks))

    async def _prefill(self, streams: Streams) -> float:
        begun_s = time.perf_counter()
        streams.start([_prompt(self._size.prompt_tokens, 1)], 1)
        await streams.ended()
        return time.perf_counter() - begun_s

    async def _beside(self, alone_s: list[float]) -> Mapping[str, float]:
        size = self._size
        async with AsyncClient(self._address) as client, task_scope() as tasks:
            await client.members()
            decodes = Streams(client, tasks)
            decodes.start([_prompt(size.context, seed + 2) for seed in range(size.decodes)], MOST_OUTPUT)
            await decodes.begun()
            before = await self._window(decodes)
            begun_s = time.perf_counter()
            took_s = await self._prefill(Streams(client, tasks))
            between = begun_s, begun_s + took_s
            after = await self._window(decodes)
            await decodes.cancel()
        quiet = [decodes.intervals_s(*window) for window in (before, after)]
        stretched = decodes.intervals_s(*between)
        rate = statistics.fmean(decodes.tokens_between(*window) for window in (before, after)) / size.window_s
        share = decodes.tokens_between(*between) / took_s / rate
        return {
            f"{MEDIAN}, {ALONE}": 1e3 * statistics.fmean(map(statistics.median, quiet)),
            f"{HIGH}, {ALONE}": 1e3 * statistics.fmean(map(_high, quiet)),
            MEDIAN: 1e3 * statistics.median(stretched),
            HIGH: 1e3 * _high(stretched),
            PREFILL: size.prompt_tokens / took_s,
            WORK: alone_s[-1] / took_s + share,
        }

    async def _window(self, decodes: Streams) -> tuple[float, float]:
        begun_s = time.perf_counter()
        await asyncio.sleep(self._size.window_s)
        return begun_s, time.perf_counter()


def measure(say: Say, *, quick: bool, decodes: int | None, context: int | None, rounds: int | None) -> Measured:
    """Run it; the report and its samples."""
    size = QUICK if quick else FULL
    size = msgspec.structs.replace(size, decodes=decodes or size.decodes, context=context or size.context)
    rounds = rounds or (1 if quick else 2)
    facts = machine_facts()
    with tempfile.TemporaryDirectory(prefix="distkv-bench-") as scratch:
        model = make_checkpoint(Path(scratch) / "model", **MODEL)
        say("starting two instances, one cluster each")
        start = partial(LocalCluster, model, 1, size.pool_tokens, threads=1, gateway=False, log_level="warning")
        with start() as adaptive, start(instance_options={"mixed_step_ratio": UNLIMITED}) as whole:
            here, there = Arrival(adaptive.address, size), Arrival(whole.address, size)
            alone_s: list[float] = []
            here.alone(alone_s)
            found = alternate(
                {
                    ALONE: partial(here.alone, alone_s),
                    ADAPTIVE: partial(here.beside, alone_s),
                    WHOLE: partial(there.beside, alone_s),
                },
                rounds,
                warmups=0,
                report=say,
            )
    samples = _by_case(found)
    machine = facts | {
        "model": "random Llama, " + ", ".join(f"{name} {value}" for name, value in MODEL.items()),
        "command": f"distkv bench interference --decodes {size.decodes} --context {size.context} --rounds {rounds}"
        + (" --quick" if quick else ""),
        "batch": f"{size.decodes} decodes from {size.context:,} tokens on, a prompt of {size.prompt_tokens:,}",
        "contenders": {
            ADAPTIVE: "LocalCluster, one thread, Python client, default settings",
            WHOLE: "the same with --mixed-step-ratio 1e9",
        },
    }
    return Report("interference", machine, versions_of(("torch", "pyzmq")), results(samples, UNITS), _goals(samples)), (
        samples
    )


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
    work = paired_ratio(samples[WORK][ADAPTIVE], [1.0] * len(samples[WORK][ADAPTIVE]))
    return (
        Goal(
            "time between tokens of decodes beside prefill to that without, p99",
            f"at most {MOST_RATIO:g}",
            str(stretched),
            stretched.value <= MOST_RATIO,
        ),
        at_least("prefill and decodes together, each as a share of its rate alone", work, LEAST_WORK),
        Goal(
            "prefill beside decodes to prefill alone",
            "measured",
            str(prefill),
            None,
            "steps of at most twice the time leave prefill half of it",
        ),
    )


def _prompt(tokens: int, seed: int) -> list[int]:
    return [1 + (seed * 7919 + index * 31) % (VOCAB - 1) for index in range(tokens)]


def _high(values: list[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))]


main = benchmark(
    "interference",
    measure,
    HELP,
    [
        click.Option(["--decodes"], type=click.IntRange(min=1), help="Sequences that decode."),
        click.Option(["--context"], type=click.IntRange(min=1), help="Tokens that each begins with."),
        click.Option(["--rounds"], type=click.IntRange(min=1), help="How often everything is measured."),
    ],
)
