"""`distkv bench dispatch`: the dispatchers of the gManager beside each other, on modelled instances.

Nothing is timed: instances compute in modelled seconds (`workloads/dispatch_model.py`), the ledger and the dispatchers
are the real ones. Each round plays one trace of high variance at each load to each dispatcher.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import get_args

import msgspec

from distkv.bench.harness.alternate import Samples, alternate, paired_ratio
from distkv.bench.harness.command import Measured, Say, benchmark, unit_of_name
from distkv.bench.harness.quantile import p99
from distkv.bench.harness.report import Goal, judged
from distkv.bench.workloads.deciding.dispatch_model import ModelCluster, Served, lognormal_trace
from distkv.types import DispatchName

POOLS = (16384, 16384, 16384, 8192, 8192, 4096, 4096, 32768)
SPEEDS = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5)
MEDIAN_TOKENS = 300
CASES = (
    "time to first token, p50",
    "time to first token, p99",
    "time per token, p50",
    "time per token, p99",
    "time to last token, mean",
)
HELP = """Time to first token and per token with requests sent by each dispatcher of the gManager: predicted,
least-loaded and random. Instances with uneven pools, one of them slower, compute in modelled time; requests are of
high variance.

\b
Examples:
  distkv bench dispatch --json dispatch.json --plot dispatch.png
  distkv bench dispatch --quick
"""


class Size(msgspec.Struct, frozen=True):
    """How big the run is. per_s: requests a second."""

    per_s: tuple[float, ...]
    requests: int
    rounds: int


FULL = Size((1.0, 2.0, 3.0, 4.0), requests=300, rounds=8)
QUICK = Size((2.0,), requests=100, rounds=2)


def measure(say: Say, *, quick: bool) -> Measured:
    """Run it."""
    size = QUICK if quick else FULL
    variants = {name: _player(name, size) for name in get_args(DispatchName)}
    samples = alternate(variants, size.rounds, warmups=0, report=say)
    facts = {
        "instances": f"pools of {', '.join(f'{pool:,}' for pool in POOLS)} tokens, the last one half as fast",
        "requests": f"{size.requests} in each round, prompts of a median of {MEDIAN_TOKENS} tokens",
    }
    return Measured(samples, _goals(samples), facts)


def _player(name: DispatchName, size: Size) -> Callable[[], Mapping[str, float]]:
    seeds = itertools.count()

    def play() -> Mapping[str, float]:
        seed = next(seeds)
        found: dict[str, float] = {}
        for per_s in size.per_s:
            trace = lognormal_trace(size.requests, MEDIAN_TOKENS, per_s, seed)
            for case, value in zip(CASES, figures(ModelCluster(POOLS, SPEEDS, name, seed).play(trace)), strict=True):
                found[f"{case}, at {per_s:g} requests/s, s"] = value
        return found

    return play


def figures(done: Sequence[Served]) -> tuple[float, float, float, float, float]:
    """What CASES names."""
    firsts = [one.first_s - one.arrival_s for one in done]
    tokens = [(one.last_s - one.first_s) / (one.output - 1) for one in done if one.output > 1]
    lasts = statistics.fmean(one.last_s - one.arrival_s for one in done)
    return statistics.median(firsts), p99(firsts), statistics.median(tokens), p99(tokens), lasts


def _goals(samples: Samples) -> tuple[Goal, ...]:
    """Predicted is no worse than either, by the whole interval of what is worse."""
    goals = []
    for case, variants in samples.items():
        ours, *others = variants
        for other in others:
            ratio = paired_ratio(variants[ours], variants[other])
            goals.append(judged(f"{case}: {ours} beside {other}", ratio, most=1.0))
    return tuple(goals)


main = benchmark("dispatch", measure, HELP, unit_of=unit_of_name, packages=("msgspec",))
