"""`distkv bench cluster`: a trace on instances that lend each other memory, on the same ones that do not, and on a big
one with the memory and the cores of all.

The same requests arrive at the same moments, at rates that rise until the slowest variant is saturated. What pooling
is worth is the throughput at the highest rate; what it costs where it is not needed is that at the lowest.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import click
import msgspec

from distkv.bench.baselines.checkpoints import MODELS, checkpoint
from distkv.bench.harness.alternate import Samples, alternate, paired_ratio
from distkv.bench.harness.command import Measured, Say, benchmark
from distkv.bench.harness.machine import machine_facts, versions_of
from distkv.bench.harness.report import Goal, Report, at_least, results
from distkv.bench.workloads.replay import Outcome, Unloaded, alone, replay
from distkv.bench.workloads.trace import TraceRequest, drawn_trace, read_trace, scaled
from distkv.client.async_client import AsyncClient
from distkv.client.local.cluster import LocalCluster
from distkv.errors import ConfigError
from distkv.wire.messages.counters import Counters, total

OFF, POOLED, BIG = "lending off", "pooled", "one big instance"
BLOCK_TOKENS = 16
POOL_OF_LARGEST = 1.5
ALONE_REQUESTS = 6
DEADLINE_S = 60.0
TOKENS, GOODPUT = "output tokens/s", "goodput"
FIRST, FIRST_HIGH = "time to first token, median", "time to first token, p99"
EACH, EACH_HIGH = "time per token, median", "time per token, p99"
UNITS = {TOKENS: "tokens/s", GOODPUT: "requests/s", FIRST: "s", FIRST_HIGH: "s", EACH: "ms", EACH_HIGH: "ms"}
COUNTED = (
    "preemptions",
    "recomputed_tokens",
    "moved_blocks",
    "refusals",
    "reclaimed_blocks",
    "attend_queries",
    "steps",
    "model_s",
    "attend_wait_s",
    "plan_s",
)
LEAST_SATURATED, LEAST_LOW = 1.0, 0.98
HELP = """Requests of a trace on instances that lend each other memory, on the same ones that do not, and on one big
instance with the memory and cores of all: throughput, goodput and latencies by rate, and what each variant moved,
preempted and computed again.

\b
Examples:
  distkv bench cluster --json cluster.json --plot cluster.png
  distkv bench cluster --trace azure_conv_2023.csv --scale-tokens 0.5 --rate 4 --rate 6
  distkv bench cluster --quick
"""


class Size(msgspec.Struct, frozen=True):
    """How big the run is. median_tokens: of the prompts, where no trace is given. per_s: the rates."""

    model: str
    instances: int
    requests: int
    median_tokens: int
    rates: tuple[float, ...]


FULL = Size("b", 2, 80, 256, (2.0, 4.0, 8.0))
QUICK = Size("tiny", 2, 12, 24, (20.0,))


class Contender:
    """A cluster that a trace is played to, and what was seen of it."""

    def __init__(self, cluster: LocalCluster, vocab: int, deadline_s: float) -> None:
        self._cluster, self._vocab, self._deadline_s = cluster, vocab, deadline_s
        self.counts: dict[str, str] = {}
        self.failed: dict[str, str] = {}

    def alone(self, requests: Sequence[TraceRequest]) -> Unloaded:
        """What these take one after the other."""
        return asyncio.run(alone(self._cluster.address, requests, self._vocab))

    def play(self, requests: Sequence[TraceRequest], at: str, unloaded: Unloaded) -> Mapping[str, float]:
        """The requests as they arrive; `at` names the rate."""
        before = asyncio.run(self._counters())
        outcomes = asyncio.run(replay(self._cluster.address, requests, self._vocab, self._deadline_s))
        after = asyncio.run(self._counters())
        self.counts[at] = ", ".join(
            f"{name} {_number(getattr(after, name) - getattr(before, name))}" for name in COUNTED
        )
        self.failed[at] = ", ".join(f"{n} {why}" for why, n in Counter(o.failed for o in outcomes if o.failed).items())
        return {f"{case}, {at}": value for case, value in _summary(outcomes, unloaded)}

    async def _counters(self) -> Counters:
        async with AsyncClient(self._cluster.address) as client:
            await client.members()
            return total(*(status.instance.counters for status in await client.statuses()))


def _summary(outcomes: Sequence[Outcome], unloaded: Unloaded) -> Iterator[tuple[str, float]]:
    """Rates are over the time from the first arrival to the last token; latencies of requests that ended."""
    ended = [one for one in outcomes if not one.failed and one.times_s]
    if not ended:
        return
    took_s = max(one.request.arrival_s + one.times_s[-1] for one in outcomes if one.times_s)
    yield TOKENS, sum(len(one.times_s) for one in ended) / took_s
    if served := sum(map(unloaded.serves, outcomes)):
        yield GOODPUT, served / took_s
    firsts = [one.first_s for one in ended]
    yield from zip((FIRST, FIRST_HIGH), (statistics.median(firsts), _high(firsts)), strict=True)
    if each := [1e3 * one.per_token_s for one in ended if one.per_token_s]:
        yield from zip((EACH, EACH_HIGH), (statistics.median(each), _high(each)), strict=True)


def measure(
    say: Say,
    *,
    quick: bool,
    trace: Path | None,
    scale_tokens: float,
    rates: Sequence[float],
    requests: int | None,
    kv_tokens: int | None,
    instances: int | None,
    rounds: int | None,
    deadline_s: float,
) -> Measured:
    """Run it; the report and its samples. Raises ConfigError for a trace that cannot be played."""
    size = QUICK if quick else FULL
    shape, count = MODELS[size.model], instances or size.instances
    rates, rounds = sorted(rates) or size.rates, rounds or 1
    drawn = drawn_trace(requests or size.requests, size.median_tokens)
    played = scaled(drawn if trace is None else read_trace(trace, requests or size.requests), tokens=scale_tokens)
    largest = max(one.num_tokens for one in played)
    pool = kv_tokens or _whole_blocks(POOL_OF_LARGEST * largest)
    if largest > pool * count:
        raise ConfigError("kv_tokens", f"the largest request has {largest:,} tokens, {count} pools of {pool:,} do not")
    facts = machine_facts()
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:count]))
    with tempfile.TemporaryDirectory(prefix="distkv-bench-") as scratch, ExitStack() as stack:
        model = checkpoint(shape, Path(scratch))
        start = partial(LocalCluster, model, gateway=False, log_level="warning", cpu_affinity=cores)
        contenders: dict[str, Contender] = {}
        for name, cluster in (
            (OFF, partial(start, count, pool, threads=1, instance_options={"lending_cap_blocks": 0})),
            (POOLED, partial(start, count, pool, threads=1)),
            (BIG, partial(start, 1, pool * count, threads=count)),
        ):
            say(f"starting {name}")
            contenders[name] = Contender(stack.enter_context(cluster()), shape.vocab, deadline_s)
        say("requests one after the other")
        unloaded = contenders[OFF].alone([one for one in played if one.num_tokens <= pool][:ALONE_REQUESTS])
        samples: Samples = {}
        for rate in rates:
            arriving = scaled(played, tokens=1.0, per_s=rate)
            variants = {name: partial(one.play, arriving, _at(rate), unloaded) for name, one in contenders.items()}
            samples |= alternate(variants, rounds, warmups=0, report=partial(_say_rate, say, rate))
    lengths = [one.num_tokens for one in played]
    facts |= {
        "cores": cores,
        "model": f"random Llama, bfloat16, {size.model}",
        "trace": "drawn" if trace is None else trace.name,
        "requests": f"{len(played)}, {min(lengths):,} to {largest:,} tokens, mean {statistics.fmean(lengths):,.0f}",
        "kv_tokens": pool,
        "instances": count,
        "unloaded": f"first token {unloaded.first_s:.3f} s + {1e3 * unloaded.first_s_per_token:.2f} ms per token of "
        f"the prompt, then {1e3 * unloaded.per_token_s:.1f} ms per token",
        "counts": {f"{name}, {at}": text for name, one in contenders.items() for at, text in one.counts.items()},
        "failed": {
            f"{name}, {at}": text for name, one in contenders.items() for at, text in one.failed.items() if text
        },
    }
    units = {case: _unit(case) for case in samples}
    report = Report("cluster", facts, versions_of(("torch", "pyzmq")), results(samples, units), _goals(samples, rates))
    return report, samples


def _goals(samples: Samples, rates: Sequence[float]) -> tuple[Goal, ...]:
    found = []
    for what, rate, least in (("saturated", rates[-1], LEAST_SATURATED), ("lowest", rates[0], LEAST_LOW)):
        by_variant = samples.get(f"{TOKENS}, {_at(rate)}", {})
        if OFF in by_variant and POOLED in by_variant:
            ratio = paired_ratio(by_variant[POOLED], by_variant[OFF])
            found.append(at_least(f"throughput at the {what} rate, pooled to lending off", ratio, least))
    return tuple(found)


def _unit(case: str) -> str:
    return UNITS[case.rpartition(", ")[0]]


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.1f}"


def _at(rate: float) -> str:
    return f"{rate:g}/s"


def _say_rate(say: Say, rate: float, what: str) -> None:
    say(f"{rate:g} requests/s, {what}")


def _whole_blocks(tokens: float) -> int:
    return -(-int(tokens) // BLOCK_TOKENS) * BLOCK_TOKENS


def _high(values: Sequence[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))]


main = benchmark(
    "cluster",
    measure,
    HELP,
    [
        click.Option(
            ["--trace"],
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="CSV file with arrival_s, prompt_tokens and output_tokens; drawn with high variance if not given.",
        ),
        click.Option(
            ["--scale-tokens"],
            type=click.FloatRange(min=0, min_open=True),
            default=1.0,
            show_default=True,
            help="Multiplies the lengths of the trace.",
        ),
        click.Option(
            ["--rate", "rates"],
            type=click.FloatRange(min=0, min_open=True),
            multiple=True,
            help="Requests per second; may be given again.",
        ),
        click.Option(["--requests"], type=click.IntRange(min=2), help="How many of the trace."),
        click.Option(
            ["--kv-tokens"], type=click.IntRange(min=1), help="Pool of each instance; 1.5 times the largest request."
        ),
        click.Option(["--instances"], type=click.IntRange(min=2), help="How many share their memory."),
        click.Option(
            ["--rounds"], type=click.IntRange(min=1), help="How often each rate is played; once if not given."
        ),
        click.Option(
            ["--deadline", "deadline_s"],
            type=click.FloatRange(min=0, min_open=True),
            default=DEADLINE_S,
            show_default=True,
            metavar="SECONDS",
            help="After which a request counts as failed.",
        ),
    ],
    unit_of=_unit,
)
