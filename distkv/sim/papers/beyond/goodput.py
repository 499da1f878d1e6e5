"""Real traces at rising rate: the requests that are served well each second, and those of vLLM side by side."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from distkv.sim.alone import alone
from distkv.sim.outcome import Outcome
from distkv.sim.papers.clusters import by_vllm, cluster
from distkv.sim.papers.figure import Effort, Figure, Panel, PlayedTrace, Ratio, Say, Series, rounded
from distkv.sim.papers.rising import offered_s
from distkv.sim.profiles import built_in as named
from distkv.sim.run import simulate
from distkv.sim.spec import SimSpec
from distkv.sim.trace import TraceRequest, scaled

PROFILE = "a100-llama2-7b"
INSTANCES = (4, 16, 64)
"""More than the first only for long contexts: of short requests so many arrive that a play takes minutes, and 64
instances serve a whole trace of them before anybody has waited."""
LOADS = (0.5, 1.0, 1.5, 2.0, 3.0)
"""Of what all GPUs can compute and read at most, and far beyond: what serves most well may be at its best there."""
WINDOW_S = 100.0
"""In which requests arrive, where the trace has so many."""
AFTER_S = 120.0
"""Until the rest is given up."""
FIRST_S, FURTHER_S = 30.0, 0.1
"""Limits that Mooncake states for this trace (FAST 2025, §8.1): to the first token, and for each further one."""
GOAL, LONG_TOKENS = 1.35, 8000
"""The goal, and the mean length of prompts from which it is one."""
VLLM, OURS, NOT_LENT = "vLLM-multi", "contract", "the same, nothing lent"
Serves = Callable[[Outcome], bool]


class Measured(msgspec.Struct, frozen=True):
    """Requests each second that are served well: by the stated limits, and by those of `distkv sim`."""

    stated: float
    alone: float


MOST = "most goodput at any rate"
COMPARED: tuple[tuple[str, Callable[[Sequence[Measured]], float]], ...] = (
    (MOST, lambda by_rate: max(one.stated for one in by_rate)),
    ("goodput at load 1", lambda by_rate: by_rate[LOADS.index(1.0) if len(by_rate) == len(LOADS) else 0].stated),
    ("goodput at the highest rate", lambda by_rate: by_rate[-1].stated),
    ("most goodput by limits of `distkv sim`", lambda by_rate: max(one.alone for one in by_rate)),
)
"""What is compared of goodput by rate."""


def figure_goodput(effort: Effort, say: Say, traces: Sequence[PlayedTrace]) -> Figure:
    """Goodput by rate, for each trace and number of instances."""
    counts, loads = effort.pick((2,), INSTANCES), effort.pick((1.0,), LOADS)
    cases = [
        (trace, instances) for instances in counts for trace in traces if instances == counts[0] or _is_long(trace)
    ]
    panels, ratios, windows = list[Panel](), list[Ratio](), list[float]()
    for place, (trace, instances) in enumerate(cases):
        title, spec = f"{trace.name}, {instances} instances", cluster(PROFILE, instances, "contract")
        rates = [load * len(trace.requests) / offered_s(trace.requests, spec) for load in loads]
        parts = [first(trace.requests, rate, effort.pick(2.0, WINDOW_S)) for rate in rates]
        windows += [len(part) / rate for part, rate in zip(parts, rates, strict=True)]
        labels = (VLLM, OURS, NOT_LENT) if instances == min(counts) else (VLLM, OURS)
        found: dict[str, list[Measured]] = {}
        for index, label in enumerate(labels):
            say(f"{title}, {label}", (place + index / len(labels)) / len(cases))
            found[label] = [
                measured(part, len(part) / rate, spec, label) for part, rate in zip(parts, rates, strict=True)
            ]
        panels.append(
            Panel(title=title, series=tuple(_series(label, rates, by_rate) for label, by_rate in found.items()))
        )
        ratios += _ratios(trace, instances, found)
    lasted = " to ".join(dict.fromkeys(f"{end(windows):.0f}" for end in (min, max)))
    return Figure(
        name="beyond-goodput",
        title="Requests served well, of real traces at rising rate, LLaMA2-7B on A100",
        x_label="requests/s",
        y_label="requests served well, each second",
        panels=tuple(panels),
        ratios=tuple(ratios),
        notes=(
            f"Served well is a request whose first token comes within {FIRST_S:g} s and whose further ones take "
            f'{FURTHER_S:g} s on average at most, the limits that Mooncake states for its trace; the rows "by limits '
            'of `distkv sim`" have five times the time alone and a second, and twice the time alone.',
            f"Requests arrive in the trace's rhythm, at {', '.join(f'{load:g}' for load in loads)} times what all "
            f"GPUs can compute and read at most (load 1), for {lasted} s; the most at "
            "any of these rates is compared, that at load 1 and that at the highest. Beyond load 1 somebody has to "
            "wait too long, and what counts is who: vLLM has all wait in order, here those that fit pass. No interval, "
            "for there is one trace.",
            "vLLM-multi batches by vLLM's rules; chunks of prompts fill steps or are kept short, and requests are sent "
            "where most room is for each or where fewest are: what serves most requests well at each rate counts.",
        ),
    )


def first(requests: Sequence[TraceRequest], rate_per_s: float, window_s: float) -> Sequence[TraceRequest]:
    """The first part of a trace, arriving so often, for so long or until its end."""
    count = max(2, min(round(rate_per_s * window_s), len(requests)))
    return scaled(requests[:count], tokens=1.0, per_s=rate_per_s)


def measured(part: Sequence[TraceRequest], window_s: float, spec: SimSpec, label: str) -> Measured:
    spec = replace(spec, most_s=window_s + AFTER_S, policy="contract" if label == OURS else "none")
    played = by_vllm(part, spec) if label == VLLM else iter([simulate(part, spec).outcomes])
    unloaded = alone(part, replace(spec, instances=1, policy="none"))
    each = list(played)
    return Measured(_most(each, is_served, window_s), _most(each, unloaded.serves, window_s))


def is_served(outcome: Outcome) -> bool:
    """By the stated limits."""
    in_time = not outcome.failed and bool(outcome.times_s) and outcome.first_s <= FIRST_S
    return in_time and (outcome.per_token_s or 0.0) <= FURTHER_S


def _most(played: Sequence[Sequence[Outcome]], serves: Serves, window_s: float) -> float:
    """Of the ways to batch."""
    return max(sum(map(serves, outcomes)) for outcomes in played) / window_s


def _ratios(trace: PlayedTrace, instances: int, found: Mapping[str, Sequence[Measured]]) -> Iterator[Ratio]:
    title = f"{trace.name}, {instances} instances"
    for label in (VLLM, NOT_LENT):
        if label not in found:
            continue
        for what, pick in COMPARED:
            if not (other := pick(found[label])):
                continue
            times = pick(found[OURS]) / other
            is_goal = _is_long(trace) and (label, what) == (VLLM, MOST)
            yield Ratio(
                what=f"{title}: {what}, times that of {label}",
                theirs=f"at least {GOAL:g}" if is_goal else "-",
                ours=rounded(times),
                note=_missed(trace, found) if is_goal and times < GOAL else "",
            )


def _missed(trace: PlayedTrace, found: Mapping[str, Sequence[Measured]]) -> str:
    large = sum(one.num_tokens > named.kv_tokens(PROFILE) for one in trace.requests) / len(trace.requests)
    by_lending = ""
    if NOT_LENT in found and (most := max(one.stated for one in found[NOT_LENT])):
        times = max(one.stated for one in found[OURS]) / most
        by_lending = (
            f" Lending makes {times:.2f} times as many of them served well as the same state machines without it."
        )
    return (
        f"Requests wait for GPUs more than for memory: {large:.2%} of them exceed an instance's memory, which only "
        f"lending serves.{by_lending}"
    )


def _is_long(trace: PlayedTrace) -> bool:
    return statistics.fmean(one.prompt_tokens for one in trace.requests) >= LONG_TOKENS


def _series(label: str, rates: Sequence[float], by_rate: Sequence[Measured]) -> Series:
    return Series.of(label, zip(rates, (one.stated for one in by_rate), strict=True))
