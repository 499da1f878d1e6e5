"""How unevenly the memory of a cluster is used, with and without sharing it, and what the difference costs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from distkv.sim.datasets.draw import dataset
from distkv.sim.papers.clusters import cluster
from distkv.sim.papers.draws import mean_ratio, paired
from distkv.sim.papers.figure import Effort, Figure, Panel, Ratio, Say, Series
from distkv.sim.run import SimResult, simulate
from distkv.sim.spec import SimPolicyName

PROFILE, INSTANCES = "a100-llama2-7b", 4
TRACE = "infinite-0"
RATES_PER_S = (2.0, 4.0)
POLICIES: tuple[SimPolicyName, ...] = ("none", "contract", "greedy", "even")
DRAWS = 9
LEFT = 1.2
"""Times the time in which requests arrive, until the rest is given up."""
IMBALANCE_GOAL, THROUGHPUT_GOAL, FIRST_GOAL = 0.80, 0.98, 1.05
NOTES: Mapping[SimPolicyName, str] = {
    "contract": "Memory is borrowed when a request lacks it, not to even out its use.",
    "greedy": "Blocks leave small batches for what is expected to generate more; who waits for a first token, or how "
    "even the use is, does not count in that.",
    "even": "Moves begin where the fullest is ahead by a quarter of a pool, so that who is nearly even is left alone; "
    "whose prompt is computed where others are served waits a little for that.",
}
"""Of goals that are missed."""


class Found(msgspec.Struct, frozen=True):
    """imbalance: most used of a pool, less the mean, 95th percentile while requests arrive. tokens_per_s: generated
    until then. first_s: to the first token, 99th percentile of requests that had one."""

    imbalance: float
    tokens_per_s: float
    first_s: float


def figure_imbalance(effort: Effort, say: Say) -> Figure:
    """Of conversations with a few documents, at a rate that leaves memory free and at one that does not."""
    rates, window_s = effort.pick(RATES_PER_S[:1], RATES_PER_S), effort.pick(5.0, 100.0)
    draws = effort.pick(2, DRAWS)
    found: dict[SimPolicyName, list[list[Found]]] = {policy: [] for policy in POLICIES}
    for index, rate in enumerate(rates):
        traces = [dataset(TRACE, per_s=rate, count=round(rate * window_s), seed=seed) for seed in range(draws)]
        for place, policy in enumerate(POLICIES):
            say(f"{policy}, {rate:g}/s", (index + place / len(POLICIES)) / len(rates))
            spec = cluster(PROFILE, INSTANCES, policy, most_s=LEFT * window_s)
            found[policy].append([_found(simulate(trace, spec), trace[-1].arrival_s) for trace in traces])
    ratios = [
        ratio
        for policy in POLICIES[1:]
        for index, rate in enumerate(rates)
        for ratio in _ratios(policy, rate, found[policy][index], found["none"][index])
    ]
    fields = {
        "imbalance": "P95 of imbalance, share of a pool",
        "tokens_per_s": "tokens/s",
        "first_s": "time to first token, p99, s",
    }
    panels = tuple(
        Panel(
            title=label,
            series=tuple(
                Series.of(
                    policy,
                    [(rate, statistics.fmean(_each(many, field))) for rate, many in zip(rates, all_, strict=True)],
                )
                for policy, all_ in found.items()
            ),
            y_label=label,
        )
        for field, label in fields.items()
    )
    return Figure(
        name="beyond-imbalance",
        title=f"Use of memory with and without sharing it, {INSTANCES} x LLaMA2-7B on A100",
        x_label="requests/s",
        y_label="",
        panels=panels,
        ratios=tuple(ratios),
        notes=(
            f"Trace 0 of 001, {draws} draws, for {window_s:g} s each. Requests are dispatched by predicted time, with "
            "sharing and without; theirs are goals.",
        ),
    )


def _ratios(policy: SimPolicyName, rate: float, many: Sequence[Found], none: Sequence[Found]) -> Iterator[Ratio]:
    compared = (
        ("P95 of imbalance", "imbalance", "at most", IMBALANCE_GOAL),
        ("tokens/s", "tokens_per_s", "at least", THROUGHPUT_GOAL),
        ("time to first token, p99", "first_s", "at most", FIRST_GOAL),
    )
    for what, field, way, goal in compared:
        base = _each(none, field)
        if not all(base):
            continue
        ratios = paired(_each(many, field), base)
        mean = statistics.fmean(ratios)
        is_met = mean <= goal if way == "at most" else mean >= goal
        found = mean_ratio(f"{policy}, {rate:g}/s: {what}, times that of none", f"{way} {goal:g}", ratios)
        yield replace(found, note="" if is_met else NOTES[policy])


def _each(many: Sequence[Found], field: str) -> list[float]:
    return [getattr(one, field) for one in many]


def _found(result: SimResult, window_s: float) -> Found:
    imbalances = sorted(one.imbalance for one in result.samples if one.at_s <= window_s)
    firsts = sorted(one.first_s for one in result.outcomes if one.times_s)
    tokens = sum(one.request.arrival_s + at_s <= window_s for one in result.outcomes for at_s in one.times_s)
    return Found(_high(imbalances, 0.95), tokens / window_s, _high(firsts, 0.99))


def _high(ascending: list[float], share: float) -> float:
    return ascending[int(share * (len(ascending) - 1))]
