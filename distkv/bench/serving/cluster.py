"""`distkv bench cluster`: a trace on instances that lend each other memory, beside those who do not.

The same requests arrive at the same moments at every contender, at rates that rise until all are saturated. What
pooling is worth is the throughput that each reaches; what it costs where it is not needed is that at the lowest rate.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import click
import msgspec

from distkv.bench.baselines.checkpoints import MODELS, checkpoint
from distkv.bench.baselines.setup import CACHE
from distkv.bench.harness.alternate import Samples, Turns, paired_ratio
from distkv.bench.harness.command import Measured, Say, benchmark
from distkv.bench.harness.finite import FiniteRange
from distkv.bench.harness.machine import machine_facts, versions_of
from distkv.bench.harness.plots.plot import write_lines
from distkv.bench.harness.report import Report, results, show_lines
from distkv.bench.pooling.contenders import NAMES, OFF, POLICIES, Given, default_policy, start
from distkv.bench.pooling.goals import Found, goals
from distkv.bench.pooling.predicted import Play, Predictor, compared, of_all_rounds
from distkv.bench.pooling.predicted import goals as true_to_reality
from distkv.bench.pooling.rates import Rates
from distkv.bench.pooling.seen import Seen
from distkv.bench.pooling.summary import FIRST_ROUNDS, SHORT_ROUNDS, TOKENS, at, unit
from distkv.bench.profiling import run as profiling
from distkv.bench.workloads.trace import DRAWN, POOL_OF_LARGEST, Drawn, drawn_trace, pool_of, read_trace, varies_much
from distkv.errors import ConfigError
from distkv.sim.trace import beginning_with, scaled
from distkv.types import PLANNED_POLICIES
from distkv.wire.profile_file import load_profile, save_profile

ALONE_REQUESTS = 6
DEADLINE_S = 120.0
PROFILE_S = 120.0
WINDOW_S, LEAST_REQUESTS = 30.0, 12
"""At low rates requests of so much time are played, and not fewer than that."""
HELP = """Requests of a trace on instances that lend each other memory by each policy, beside the same ones that do not
(off), one instance with the memory and cores of all (big), and instances of vLLM with as much KV memory each behind a
router that sends to the least loaded (vllm): throughput, goodput and latencies by rate.

\b
Examples:
  distkv bench cluster --json cluster.json --plot cluster.png
  distkv bench cluster --trace azure_conv_2023.csv --scale-tokens 0.5 --rate 4 --rate 6
  distkv bench cluster --drawn long --contender off --contender contract --budget 600
  distkv bench cluster --quick
"""


class Size(msgspec.Struct, frozen=True):
    """How big the run is. median_tokens: of the prompts, where no trace is given. rates: they double from a low one if
    there are none."""

    model: str
    instances: int
    requests: int
    median_tokens: int
    rates: tuple[float, ...]
    rounds: int


FULL = Size("b", 2, 60, 48, (), 3)
QUICK = Size("tiny", 2, 12, 24, (20.0,), 1)


def measure(
    say: Say,
    *,
    quick: bool,
    contenders: Sequence[str],
    trace: Path | None,
    drawn: Drawn,
    seed: int,
    scale_tokens: float,
    rates: Sequence[float],
    requests: int | None,
    kv_tokens: int | None,
    instances: int | None,
    profile: Path | None,
    rounds: int | None,
    deadline_s: float,
    budget_s: float | None,
    venvs: Path,
) -> Measured:
    """Run it; the report and its samples. Raises ConfigError for a trace that cannot be played, and when no contender
    can run."""
    begun_s = time.monotonic()
    size = QUICK if quick else FULL
    shape, count, num_rounds = MODELS[size.model], instances or size.instances, rounds or size.rounds
    drawing = drawn_trace(drawn, requests or size.requests, size.median_tokens, seed)
    played = scaled(drawing if trace is None else read_trace(trace, requests or size.requests), tokens=scale_tokens)
    largest = max(one.num_tokens for one in played)
    pool = kv_tokens or pool_of(played, POOL_OF_LARGEST["variance" if trace else drawn])
    if largest > pool * count:
        raise ConfigError("kv_tokens", f"the largest request has {largest:,} tokens, {count} pools of {pool:,} do not")
    timed = [one for one in played if one.num_tokens <= pool and one.output_tokens > 1][:ALONE_REQUESTS]
    if not timed:
        raise ConfigError("kv_tokens", f"no request of two output tokens fits a pool of {pool:,} tokens")
    facts = machine_facts()
    cores = tuple(sorted(os.sched_getaffinity(0))[:count])
    with tempfile.TemporaryDirectory(prefix="distkv-bench-") as scratch, ExitStack() as stack:
        model = checkpoint(shape, Path(scratch))
        names = contenders or NAMES
        known = profile
        if known is None and not POLICIES.keys().isdisjoint(names):
            known, facts["profile"] = _profiled(model, Path(scratch), cores[:2], say, quick=quick)
        if not PLANNED_POLICIES.isdisjoint(names):
            profile = known
        given = Given(shape, model, count, pool, largest, cores, profile, venvs.expanduser().absolute())
        running, left_out = start(names, given, stack, say)
        if not running:
            raise ConfigError("contender", "; ".join(f"{name}: {why}" for name, why in left_out.items()))
        settings = {name: str(one.settings) for name, one in running.items()}
        seen = {name: Seen(one, shape.vocab, deadline_s, pool) for name, one in running.items()}
        say("requests one after the other")
        first = next(iter(seen))
        unloaded = seen[first].alone(timed)
        predictor = None
        if known is not None:
            predictor = Predictor(load_profile(known), count, pool, deadline_s, has_profile=profile is not None)
            facts["unloaded_simulated"] = str(predictor.alone(timed))
            if first in POLICIES:
                predictor.learn(timed, unloaded)
        turns, plays = Turns(), list[Play]()

        def play(rate: float, index: int) -> Mapping[str, float]:
            say(f"{rate:g} requests/s, round {index + 1}")
            turned = beginning_with(played, index * len(played) // num_rounds)
            arriving = scaled(turned[: _count(rate, len(played))], tokens=1.0, per_s=rate)
            variants = {
                name: partial(one.play, arriving, rate, unloaded, f"{index} {rate:g}") for name, one in seen.items()
            }
            turns.take(variants, index)
            plays.append(Play(rate, arriving))
            return {name: values[-1] for name, values in turns.samples[at(TOKENS, rate)].items()}

        lowest = float(f"{count / statistics.fmean(map(unloaded.whole_of_s, played)):.1g}")
        plan = Rates(
            rates or size.rates,
            lowest,
            num_rounds,
            lambda: time.monotonic() - begun_s,
            budget_s,
        )
        plan.run(play)
    say("simulating the same")
    predicted = {} if predictor is None else predictor.samples(plays, seen, unloaded, {first: timed})
    lengths = [one.num_tokens for one in played]
    unheld = sum(one > pool for one in lengths)
    samples = turns.samples
    for name, one in seen.items():
        high = of_all_rounds(FIRST_ROUNDS, one.firsts_s) | of_all_rounds(SHORT_ROUNDS, one.shorts_s)
        for case, first_s in high.items():
            samples.setdefault(case, {})[name] = [first_s]
    facts |= {
        "cores_used": ",".join(map(str, cores)),
        "model": f"random Llama, bfloat16, {size.model}",
        "trace": f"drawn, {drawn}, seed {seed}" if trace is None else trace.name,
        "requests": f"{len(played)}, {min(lengths):,} to {largest:,} tokens, mean {statistics.fmean(lengths):,.0f}, "
        f"standard deviation {statistics.pstdev(lengths):,.0f}; {unheld} that no pool holds",
        "requests_of_a_rate": {f"{rate:g}/s": str(_count(rate, len(played))) for rate in plan.played},
        "kv_tokens": pool,
        "instances": count,
        "unloaded": str(unloaded),
        "control_ms": 0.0 if predictor is None else round(1e3 * predictor.control_s, 2),
        "simulated": compared(samples, predicted),
        "measured_s": round(time.monotonic() - begun_s),
        "no_time_for": ", ".join(plan.left_out),
        "settings": settings,
        "left_out": left_out,
        "throughput_to_off": _beside_off(samples, plan.played),
        "counts": {f"{name}, {rate}": text for name, one in seen.items() for rate, text in one.counts.items()},
        "failed": {f"{name}, {rate}": text for name, one in seen.items() for rate, text in one.failed.items() if text},
    }
    served = {name: one.served for name, one in seen.items()}
    shorts_s = {name: one.shorts_s for name, one in seen.items()}
    found = Found(samples, plan.played, left_out, varies_much(played), unheld, served, plan.saturated, shorts_s)
    rows = results(samples, {case: unit(case) for case in samples})
    rows += results(
        {case: {f"{name}, simulated": values for name, values in found.items()} for case, found in predicted.items()},
        {case: unit(case) for case in predicted},
    )
    versions = versions_of(("torch", "pyzmq"))
    stated = goals(found, default_policy()) + true_to_reality(
        samples, predicted, plan.played, [name for name in served if name in POLICIES and predictor is not None]
    )
    return Report("cluster", facts, versions, rows, stated), samples


def _profiled(model: Path, scratch: Path, cores: Sequence[int], say: Say, *, quick: bool) -> tuple[Path, str]:
    """What instances of one thread plan by, each on its own core as theirs are, and how well it predicts: nothing
    is planned without it."""
    pinned = {"cpu_affinity": ",".join(map(str, cores))} if len(cores) == 2 else {}
    file = profiling.run({"model": str(model), "threads": 1} | pinned, say, quick=quick, budget_s=PROFILE_S)
    path = scratch / "profile.json"
    save_profile(file, path)
    return path, profiling.summary(file)


def _beside_off(samples: Samples, rates: Sequence[float]) -> dict[str, str]:
    """The ratios of throughput to lending off, round by round."""
    return {
        case: str(paired_ratio(values, by_variant[OFF]))
        for rate in rates
        for by_variant in (samples[at(TOKENS, rate)],)
        for name, values in by_variant.items()
        for case in (at(name, rate),)
        if name != OFF and OFF in by_variant and min(*values, *by_variant[OFF]) > 0
    }


def _count(rate: float, most: int) -> int:
    """How many requests are played at a rate."""
    return min(most, max(LEAST_REQUESTS, round(rate * WINDOW_S)))


main = benchmark(
    "cluster",
    measure,
    HELP,
    [
        click.Option(
            ["--contender", "contenders"],
            type=click.Choice(NAMES),
            multiple=True,
            help="Who plays; may be given again. All that can, if not given.",
        ),
        click.Option(
            ["--trace"],
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="CSV file with arrival_s, prompt_tokens and output_tokens; one is drawn if not given.",
        ),
        click.Option(
            ["--drawn"],
            type=click.Choice(DRAWN),
            default=DRAWN[0],
            show_default=True,
            help="Which trace is drawn: outputs of high variance; with requests too long for one instance; all alike; "
            "documents among chats.",
        ),
        click.Option(["--seed"], type=int, default=0, show_default=True, help="Of the drawn trace."),
        click.Option(
            ["--scale-tokens"],
            type=FiniteRange(min=0, min_open=True),
            default=1.0,
            show_default=True,
            help="Multiplies the lengths of the trace.",
        ),
        click.Option(
            ["--rate", "rates"],
            type=FiniteRange(min=0, min_open=True),
            multiple=True,
            help="Requests per second; may be given again. If not given they double until all are saturated.",
        ),
        click.Option(["--requests"], type=click.IntRange(min=2), help="How many of the trace."),
        click.Option(
            ["--kv-tokens"], type=click.IntRange(min=1), help="Pool of each instance; 1.5 times the largest request."
        ),
        click.Option(["--instances"], type=click.IntRange(min=2), help="How many share their memory."),
        click.Option(
            ["--profile"],
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Profile of one instance with one thread, for those of one core and the simulator; measured first if "
            "not given.",
        ),
        click.Option(["--rounds"], type=click.IntRange(min=1), help="How often each rate is played."),
        click.Option(
            ["--deadline", "deadline_s"],
            type=FiniteRange(min=0, min_open=True),
            default=DEADLINE_S,
            show_default=True,
            metavar="SECONDS",
            help="After which a request counts as failed.",
        ),
        click.Option(
            ["--budget", "budget_s"],
            type=FiniteRange(min=0, min_open=True),
            metavar="SECONDS",
            help="How long it may take; the report says what there was no time for.",
        ),
        click.Option(
            ["--venvs"],
            type=click.Path(file_okay=False, path_type=Path),
            default=CACHE / "venvs",
            show_default=True,
            help="Directory of the environment of vLLM.",
        ),
    ],
    unit_of=unit,
    plot=partial(write_lines, along="requests per second"),
    table=show_lines,
)
