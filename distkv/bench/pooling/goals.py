"""What is stated of pooling, judged by what was measured: met or not where the whole 95 % interval says so."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from distkv.bench.harness.alternate import Ratio, Samples, paired_ratio, pooled_ratio
from distkv.bench.harness.quantile import p99
from distkv.bench.harness.report import Goal, judged
from distkv.bench.pooling.contenders import BIG, OFF, POOLED, VLLM
from distkv.bench.pooling.summary import GOODPUT, SHORT_ROUNDS, TOKENS, at

LEAST_VARIED, LEAST_ELSE, LEAST_LOWEST, LEAST_BIG, LEAST_OF_VLLM = 1.35, 1.0, 0.98, 1.0, 1.5
MOST_SHORT = 1.1


class Found(msgspec.Struct, frozen=True):
    """What was measured. rates: ascending. left_out: contenders that did not run, and why. varied: whether the trace is
    one of high variance. unheld: requests that no single pool holds. served: how many of those each contender served,
    of how many that it was sent. saturated: whether the highest rate was more than any contender serves. shorts_s:
    times to first token of short requests, by contender, rate and round."""

    samples: Samples
    rates: Sequence[float]
    left_out: Mapping[str, str]
    varied: bool
    unheld: int
    served: Mapping[str, tuple[int, int]]
    saturated: bool
    shorts_s: Mapping[str, Mapping[float, Sequence[Sequence[float]]]]


def goals(found: Found, default: str) -> tuple[Goal, ...]:
    """Of each policy that pools. default: the one that a gManager has if nothing is set."""
    return tuple(goal for policy in POOLED for goal in _of(policy, found, default))


def _of(policy: str, found: Found, default: str) -> Iterator[Goal]:
    name = f"{policy}, the default" if policy == default else policy
    saturated = LEAST_VARIED if found.varied else LEAST_ELSE
    lowest = found.rates[0]
    yield _at_least(f"saturated throughput, {name} to {OFF}", found, policy, OFF, TOKENS, saturated)
    yield _at_least(f"throughput at the lowest rate, {name} to {OFF}", found, policy, OFF, TOKENS, LEAST_LOWEST, lowest)
    yield _at_least(f"saturated throughput, {name} to one {BIG} instance", found, policy, BIG, TOKENS, LEAST_BIG)
    yield _at_least(f"goodput, {name} to instances of vLLM", found, policy, VLLM, GOODPUT, LEAST_OF_VLLM)
    yield _short(f"{SHORT_ROUNDS}, {name} to {OFF}, at its worst rate", found, policy)
    yield _unheld(f"requests that no single instance holds are served, {name}", found, policy)


def _at_least(
    goal: str, found: Found, ours: str, theirs: str, case: str, least: float, rate: float | None = None
) -> Goal:
    """rate: None compares the best rate of each."""
    target = f"at least {least:g}"
    if absent := _absent(found, ours, theirs):
        return Goal(goal, target, "not measured", None, absent)
    if rate is None and not found.saturated:
        return Goal(goal, target, "not measured", None, "no rate was more than all of them serve")
    mine, other = (
        _values(found, one, case, _best(found, one, case) if rate is None else rate) for one in (ours, theirs)
    )
    return judged(goal, _ratio(mine, other), least=least)


def _short(goal: str, found: Found, ours: str) -> Goal:
    target = f"at most {MOST_SHORT:g}"
    if absent := _absent(found, ours, OFF):
        return Goal(goal, target, "not measured", None, absent)
    mine, other = (found.shorts_s.get(name, {}) for name in (ours, OFF))
    ratios = [
        (pooled_ratio(mine[rate], other[rate], p99), rate)
        for rate in found.rates
        if rate in mine and rate in other and all(map(len, (*mine[rate], *other[rate])))
    ]
    worst, rate = max(ratios, key=lambda one: one[0].value, default=(None, 0.0))
    return judged(f"{goal}, {rate:g}/s", worst, most=MOST_SHORT)


def _unheld(goal: str, found: Found, ours: str) -> Goal:
    if not found.unheld:
        return Goal(goal, "all", "not measured", None, "each request of this trace fits one pool")
    if absent := _absent(found, ours):
        return Goal(goal, "all", "not measured", None, absent)
    served, sent = found.served[ours]
    if not sent:
        return Goal(goal, "all", "not measured", None, "none of them was played")
    beside = f", {OFF} {found.served[OFF][0]}" if OFF in found.served else ""
    return Goal(goal, "all", f"{served} of {sent}{beside}", served == sent)


def _absent(found: Found, *names: str) -> str:
    return "; ".join(f"without {name}: {found.left_out[name]}" for name in names if name in found.left_out)


def _best(found: Found, name: str, case: str) -> float:
    """The rate at which a contender reaches most."""
    return max(found.rates, key=lambda rate: statistics.median(_values(found, name, case, rate)))


def _values(found: Found, name: str, case: str, rate: float) -> Sequence[float]:
    return found.samples.get(at(case, rate), {}).get(name, ())


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio | None:
    """Of the rounds that both have; None if there is none, or one in which either had nothing."""
    rounds = min(len(ours), len(theirs))
    ours, theirs = ours[:rounds], theirs[:rounds]
    return paired_ratio(ours, theirs) if rounds and min(*ours, *theirs) > 0 else None
