"""What instances that fail cost a cluster in goodput."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from msgspec.structs import replace

from distkv.sim.alone import alone
from distkv.sim.datasets.draw import dataset
from distkv.sim.outcome import Unloaded
from distkv.sim.papers.clusters import cluster
from distkv.sim.papers.draws import mean_ratio
from distkv.sim.papers.figure import Effort, Figure, Panel, Ratio, Say, Series
from distkv.sim.run import SimResult, simulate
from distkv.sim.spec import Kill, Restart, SimPolicyName

PROFILE, INSTANCES = "a100-llama2-7b", 4
TRACE, RATE_PER_S = "infinite-0", 2.5
POLICIES: tuple[SimPolicyName, ...] = ("none", "contract")
DOWN_S = 30.0
"""From a failure until the instance is there again."""
LEFT = 1.5
"""Times the time in which requests arrive, until the rest is given up."""
STATED_S = 32 * 3600.0
"""Seconds of instances for one failure: one an hour where there are 32."""
GOAL = 0.97
DRAWS = 5


def figure_failures(effort: Effort, say: Say) -> Figure:
    """Requests served well, with one failure in the middle and without, by how often instances fail."""
    window_s, draws = effort.pick(5.0, 120.0), effort.pick(2, DRAWS)
    down_s = effort.pick(1.0, DOWN_S)
    faults = (Kill(window_s / 3, "i3"), Restart(window_s / 3 + down_s, "i3"))
    traces = [dataset(TRACE, per_s=RATE_PER_S, count=round(RATE_PER_S * window_s), seed=seed) for seed in range(draws)]
    played_hours = INSTANCES * window_s / 3600
    series, ratios = list[Series](), list[Ratio]()
    for index, policy in enumerate(POLICIES):
        spec = cluster(PROFILE, INSTANCES, policy, most_s=LEFT * window_s)
        kept = list[float]()
        for draw, trace in enumerate(traces):
            say(f"{policy}, draw {draw + 1} of {draws}", (index + draw / draws) / len(POLICIES))
            unloaded = alone(trace, cluster(PROFILE, 1, "none"))
            well = _served(simulate(trace, spec), unloaded)
            kept.append(_served(simulate(trace, replace(spec, faults=faults)), unloaded) / well)
        hours = (played_hours, 4.0, 8.0, 16.0, STATED_S / 3600)
        series.append(Series.of(policy, [(one, statistics.fmean(rarer(kept, one / played_hours))) for one in hours]))
        stated = rarer(kept, hours[-1] / played_hours)
        ratios += [
            mean_ratio(
                f"{policy}, one failure an hour of 32 instances: goodput, times that without",
                f"at least {GOAL:g}",
                stated,
            ),
            mean_ratio(
                f"{policy}, one failure in {played_hours:.2g} hours of an instance, as played: the same", "-", kept
            ),
        ]
    return Figure(
        name="beyond-failures",
        title=f"Goodput where instances fail, {INSTANCES} x LLaMA2-7B on A100",
        x_label="hours of an instance between two failures",
        y_label="goodput, times that without failures",
        panels=(Panel(title=f"trace 0 of 001, {RATE_PER_S:g}/s", series=tuple(series), x_log=True),),
        ratios=tuple(ratios),
        notes=(
            f"{draws} draws; in each one instance of {INSTANCES} dies once in {window_s:g} s and is back after "
            f"{down_s:g} s. A failure costs as many requests however rare it is, so that the rest follows by dividing. "
            "Goodput counts a request whose first token comes within five times the time alone and a second, and each "
            "further one within twice the time alone.",
        ),
    )


def rarer(kept: Sequence[float], times: float) -> list[float]:
    """What is kept of the goodput if a failure comes so many times less often."""
    return [1 - (1 - one) / times for one in kept]


def _served(result: SimResult, unloaded: Unloaded) -> int:
    return sum(unloaded.serves(one) for one in result.outcomes)
