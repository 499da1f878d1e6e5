"""`distkv bench cluster`: a trace on instances that lend each other memory, beside those who do not.

The same requests arrive at the same moments at every contender, at rates that rise until all are saturated. What
pooling is worth is the throughput that each reaches; what it costs where it is not needed is that at the lowest rate.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from distkv.bench.baselines.checkpoints import MODELS, checkpoint
from distkv.bench.baselines.setup import CACHE
from distkv.bench.harness.alternate import Samples, paired_ratio
from distkv.bench.harness.command import Measured, Say, benchmark
from distkv.bench.harness.finite import FiniteRange
from distkv.bench.harness.plots.plot import write_lines
from distkv.bench.harness.report import results, show_lines
from distkv.bench.pooling.contenders import NAMES, OFF, POLICIES, Given, default_policy, start
from distkv.bench.pooling.game import Game
from distkv.bench.pooling.goals import Found, goals
from distkv.bench.pooling.load import load_of
from distkv.bench.pooling.predicted import Predictor, compared
from distkv.bench.pooling.predicted import goals as true_to_reality
from distkv.bench.pooling.rates import Rates
from distkv.bench.pooling.seen import Seen
from distkv.bench.pooling.summary import TOKENS, at, unit
from distkv.bench.profiling import run as profiling
from distkv.bench.workloads.trace import DRAWN, Drawn, varies_much
from distkv.errors import ConfigError
from distkv.types import PLANNED_POLICIES
from distkv.wire.profile_file import load_profile, save_profile

DEADLINE_S = 120.0
"""After which a request counts as failed."""
PROFILE_S = 120.0
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


FULL = Size("b", 2, 60, 48, ())
QUICK = Size("tiny", 2, 12, 24, (20.0,))


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
    rounds: int,
    budget_s: float | None,
    venvs: Path,
) -> Measured:
    """Run it. Raises ConfigError for a trace that cannot be played, and when no contender
    can run."""
    begun_s = time.monotonic()
    size = QUICK if quick else FULL
    shape, count = MODELS[size.model], instances or size.instances
    load = load_of(trace, drawn, seed, requests or size.requests, size.median_tokens, scale_tokens, kv_tokens, count)
    facts: dict[str, Any] = {}
    cores = tuple(sorted(os.sched_getaffinity(0))[:count])
    with tempfile.TemporaryDirectory(prefix="distkv-bench-") as scratch, ExitStack() as stack:
        model = checkpoint(shape, Path(scratch))
        names = contenders or NAMES
        known = profile
        if known is None and not POLICIES.keys().isdisjoint(names):
            known, facts["profile"] = _profiled(model, Path(scratch), cores[:2], say, quick=quick)
        if not PLANNED_POLICIES.isdisjoint(names):
            profile = known
        venvs = venvs.expanduser().absolute()
        given = Given(shape, model, count, load.kv_tokens, max(load.lengths), cores, profile, venvs)
        running, left_out = start(names, given, stack, say)
        if not running:
            raise ConfigError("contender", "; ".join(f"{name}: {why}" for name, why in left_out.items()))
        settings = {name: str(one.settings) for name, one in running.items()}
        seen = {name: Seen(one, shape.vocab, DEADLINE_S, load.kv_tokens) for name, one in running.items()}
        say("requests one after the other")
        first = next(iter(seen))
        unloaded = seen[first].alone(load.alone)
        predictor = None
        if known is not None:
            predictor = Predictor(
                load_profile(known), count, load.kv_tokens, DEADLINE_S, has_profile=profile is not None
            )
            facts["unloaded_simulated"] = str(predictor.alone(load.alone))
            if first in POLICIES:
                predictor.learn(load.alone, unloaded)
        game = Game(load, seen, unloaded, rounds, say)
        lowest = float(f"{count / statistics.fmean(map(unloaded.whole_of_s, load.requests)):.1g}")
        plan = Rates(rates or size.rates, lowest, rounds, lambda: time.monotonic() - begun_s, budget_s)
        plan.run(game.play)
    say("simulating the same")
    predicted = {} if predictor is None else predictor.samples(game.plays, seen, unloaded, {first: load.alone})
    samples = game.samples()
    facts |= {
        "cores_used": ",".join(map(str, cores)),
        "model": f"random Llama, bfloat16, {size.model}",
        "trace": load.title,
        "requests": str(load),
        "requests_of_a_rate": {f"{rate:g}/s": str(load.num_at(rate)) for rate in plan.played},
        "kv_tokens": load.kv_tokens,
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
    found = Found(
        samples,
        plan.played,
        left_out,
        varies_much(load.requests),
        load.num_unheld,
        {name: one.served for name, one in seen.items()},
        plan.saturated,
        {name: one.shorts_s for name, one in seen.items()},
    )
    simulated = [name for name in seen if name in POLICIES and predictor is not None]
    stated = goals(found, default_policy()) + true_to_reality(samples, predicted, plan.played, simulated)
    beside = {
        case: {f"{name}, simulated": values for name, values in by_name.items()} for case, by_name in predicted.items()
    }
    return Measured(samples, stated, facts, results(beside, unit))


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
    packages=("torch", "pyzmq"),
    rounds=(3, 1),
    plot=partial(write_lines, along="requests per second"),
    table=show_lines,
)
