"""What instances that fail cost a cluster in goodput."""

from __future__ import annotations

from msgspec.structs import replace

from distkv.sim.alone import alone
from distkv.sim.datasets.draw import dataset
from distkv.sim.outcome import Unloaded
from distkv.sim.papers.clusters import cluster
from distkv.sim.papers.figure import Effort, Figure, Panel, Ratio, Say, Series, rounded
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


def figure_failures(effort: Effort, say: Say) -> Figure:
    """Requests served well, with one failure in the middle and without, by how often instances fail."""
    window_s = effort.pick(5.0, 120.0)
    trace = dataset(TRACE, per_s=RATE_PER_S, count=round(RATE_PER_S * window_s))
    unloaded = alone(trace, cluster(PROFILE, 1, "none"))
    failed_at_s = window_s / 3
    down_s = effort.pick(1.0, DOWN_S)
    faults = (Kill(failed_at_s, "i3"), Restart(failed_at_s + down_s, "i3"))
    series, ratios = list[Series](), list[Ratio]()
    for index, policy in enumerate(POLICIES):
        say(f"{policy}, without a failure", index / len(POLICIES))
        spec = cluster(PROFILE, INSTANCES, policy, most_s=LEFT * window_s)
        well = _served(simulate(trace, spec), unloaded)
        say(f"{policy}, with one", (index + 0.5) / len(POLICIES))
        lost = well - _served(simulate(trace, replace(spec, faults=faults)), unloaded)
        # So many requests are served well in the time of instances that one failure is stated for.
        stated = well * STATED_S / (INSTANCES * window_s)
        played = INSTANCES * window_s / 3600
        points = [(hours, 1 - lost / (stated * hours * 3600 / STATED_S)) for hours in (played, 4.0, 8.0, 16.0, 32.0)]
        series.append(Series.of(policy, points))
        ratios += [
            Ratio(
                what=f"{policy}, one failure an hour of 32 instances: goodput, times that without",
                theirs=f"at least {GOAL:g}",
                ours=rounded(1 - lost / stated),
            ),
            Ratio(
                what=f"{policy}, one failure in {played:.2g} hours of an instance, as played: the same",
                theirs="-",
                ours=rounded(1 - lost / well),
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
            f"One instance of {INSTANCES} dies once in {window_s:g} s and is back after {down_s:g} s. A failure costs "
            "as many requests however rare it is, so that the rest follows by dividing. Goodput counts a request "
            "whose first token comes within five times the time alone and a second, and each further one within "
            "twice the time alone.",
        ),
    )


def _served(result: SimResult, unloaded: Unloaded) -> int:
    return sum(unloaded.serves(one) for one in result.outcomes)
