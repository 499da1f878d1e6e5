"""The goals that are stated for models b and c, judged by what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from distkv.bench.baselines.cases import Case
from distkv.bench.baselines.comparison import LIMIT, OURS
from distkv.bench.harness.alternate import Ratio, Samples, paired_ratio
from distkv.bench.harness.report import Goal

LEAST_OF_LIMIT = 0.8
MOST_OUTSIDE = 0.05


def goals_of(
    model: str, cases: Sequence[Case], samples: Samples, left_out: Mapping[str, Mapping[str, str]]
) -> list[Goal]:
    """Of every case: its share of the limit, if it decodes one prompt, and its ratio to the best baseline."""
    goals = []
    for case in cases:
        target = case.goal.get(model)
        rates = samples.get(case.name, {})
        absent = "; ".join(f"without {baseline}: {why}" for baseline, why in left_out.get(case.name, {}).items())
        if case.kind == "decode":
            of_limit = _ratio(rates, LIMIT)
            least = LEAST_OF_LIMIT if target is not None else None
            goals.append(_goal(f"{case.name} of {model}: share of the memory limit", of_limit, least, ""))
        best = max(
            (name for name in rates if name not in (OURS, LIMIT)),
            key=lambda name: statistics.median(rates[name]),
            default="",
        )
        beside = f"{case.name} of {model}: ratio to the best baseline" + (f", {best}" if best else "")
        goals.append(_goal(beside, _ratio(rates, best), target, absent))
    return goals


def outside_goal(model: str, shares: Sequence[float]) -> Goal:
    """How much of a step at batch 8 is not model maths. shares: one per sample, empty if none could be counted."""
    goal = f"time outside model maths, of the step at batch 8 of {model}"
    target = f"at most {MOST_OUTSIDE:.0%}"
    if not shares:
        return Goal(goal, target, "not measured", None, "all ended before it could be counted")
    share = statistics.median(shares)
    measured = f"{share:.1%} ({min(shares):.1%}..{max(shares):.1%})"
    if model != "b":
        return Goal(goal, target, measured, None, "the goal is stated for model b")
    return Goal(goal, target, measured, share <= MOST_OUTSIDE)


def _ratio(rates: Mapping[str, Sequence[float]], name: str) -> Ratio | None:
    if OURS not in rates or name not in rates:
        return None
    return paired_ratio(rates[OURS], rates[name])


def _goal(goal: str, ratio: Ratio | None, target: float | None, absent: str) -> Goal:
    least = f"at least {target:g}" if target is not None else "measured"
    if ratio is None:
        return Goal(goal, least, "not measured", None, absent or "there is nothing to compare with")
    if target is None:
        return Goal(goal, least, str(ratio), None, "goals are stated for models b and c")
    if ratio.low < target <= ratio.high and ratio.low != ratio.high:
        why = "the 95 % interval includes the target"
        return Goal(goal, least, str(ratio), None, "; ".join(filter(None, (why, absent))))
    return Goal(goal, least, str(ratio), ratio.value >= target, absent)
