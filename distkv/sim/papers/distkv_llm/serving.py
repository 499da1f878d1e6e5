"""000 Fig. 8 (§6.2): datasets served by DistKV-LLM and by one instance over all GPUs, vLLM-v2, at rising rate."""

from __future__ import annotations

import statistics

import msgspec
from msgspec.structs import replace

from distkv.control.performance.model import PerformanceModel
from distkv.sim.datasets.draw import dataset
from distkv.sim.papers.distkv_llm.setups import SETUPS, SHARES, dataset_of
from distkv.sim.papers.figure import Effort, Figure, Panel, Ratio, Say, Series, rounded
from distkv.sim.run import simulate
from distkv.sim.spec import SimPolicyName, SimSpec
from distkv.sim.trace import TraceRequest, scaled

PLAYED = (0,)
"""Rows of Table 2 that are simulated."""
THEIRS = ((1.4, 2.4), (1.1, 1.4), (1.03, 1.3))
"""Improvements by share of long requests, as printed."""
REQUESTS = 24
POLICIES: tuple[tuple[SimPolicyName, str], ...] = (("single", "vLLM-v2"), ("contract", "DistKV-LLM"))


class Point(msgspec.Struct, frozen=True):
    """Of one rate. latency_s: until the last token, for each token, on average over requests."""

    tokens_per_s: float
    latency_s: float


def figure_8(effort: Effort, say: Say) -> Figure:
    """Throughput and latency by setup and share of long requests."""
    setups, shares = effort.pick(PLAYED[:1], PLAYED), effort.pick((0,), range(len(SHARES)))
    loads, count = effort.pick((3.0,), (1.0, 3.0)), effort.pick(8, REQUESTS)
    panels, ratios = list[Panel](), list[Ratio]()
    for row, share in ((row, share) for row in setups for share in shares):
        setup, name = SETUPS[row], dataset_of(row, share)
        curves = dict[str, list[Point]]()
        for place, (policy, label) in enumerate(POLICIES):
            done = len(panels) + place / len(POLICIES)
            say(f"{name}, {label}", done / (len(setups) * len(shares)))
            curves[label] = [_played(name, replace(setup.spec(), policy=policy), count, load) for load in loads]
        title = f"{setup.title}, {SHARES[share]} % long"
        panels.append(
            Panel(
                title=title,
                series=tuple(
                    Series.of(label, [(one.tokens_per_s, one.latency_s) for one in points])
                    for label, points in curves.items()
                ),
            )
        )
        single, pooled = curves.values()
        ratios += [
            _ratio(f"{title}, load {load:g}", THEIRS[share], mine.tokens_per_s / other.tokens_per_s)
            for load, mine, other in zip(loads, pooled, single, strict=True)
        ]
    return Figure(
        name="000-8",
        title="Datasets served by instances that share memory, and by one over all GPUs",
        x_label="output tokens/s",
        y_label="latency per output token, s",
        panels=tuple(panels),
        ratios=tuple(ratios),
        notes=(
            f"{count} requests of each dataset, one of the longest among them; {len(setups)} of the six setups. "
            "Load 1 is as fast as the memory of all GPUs can be read for them. Throughput is that of all tokens until "
            "the last one: of so few requests, who is last decides much.",
        ),
    )


def offered_s(trace: list[TraceRequest], spec: SimSpec) -> float:
    """Seconds that all instances together need for a trace at least: prompts, and reading keys for each token."""
    model = PerformanceModel(spec.profile)
    return sum(
        model.prefill_s(one.prompt_tokens) + one.output_tokens * model.attention_s(one.num_tokens) for one in trace
    ) / (spec.instances)


def _played(name: str, spec: SimSpec, count: int, load: float) -> Point:
    trace = dataset(name, count=count)
    result = simulate(scaled(trace, tokens=1.0, per_s=load * count / offered_s(trace, spec)), spec)
    served = [one for one in result.outcomes if not one.failed]
    return Point(
        sum(len(one.times_s) for one in served) / result.simulated_s,
        statistics.fmean(one.times_s[-1] / len(one.times_s) for one in served),
    )


def _ratio(title: str, theirs: tuple[float, float], ours: float) -> Ratio:
    note = ""
    if ours < theirs[0]:
        note = (
            "One instance over all GPUs divides each request among them, also the longest one, which ends last. Work "
            "of the host, which the paper's vLLM had, is not in the roofline."
        )
    elif ours > theirs[1]:
        note = "A long request that waits for memory, and ends last, keeps one instance over all GPUs busy for longer."
    return Ratio(what=f"{title}: tokens/s, times those of vLLM-v2", theirs=theirs, ours=rounded(ours), note=note)
