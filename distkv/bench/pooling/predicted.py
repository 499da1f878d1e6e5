"""What the simulator predicts of the plays of a benchmark, by a profile of the machine that plays them, beside what was
measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import msgspec

from distkv.bench.harness.alternate import Samples
from distkv.bench.harness.quantile import p99
from distkv.bench.harness.report import Goal
from distkv.bench.pooling.consecutive import arriving, one_after_the_other
from distkv.bench.pooling.contenders import POLICIES
from distkv.bench.pooling.summary import FIRST_HIGH, FIRST_ROUNDS, TOKENS, at, firsts_s, summary
from distkv.sim.outcome import Outcome, Unloaded
from distkv.sim.profiles.sensitivity import scaled
from distkv.sim.run import simulate
from distkv.sim.spec import SimPolicyName, SimSpec
from distkv.sim.trace import TraceRequest
from distkv.wire.messages.profile import Point, Profile

MOST_OFF: Mapping[str, float] = {TOKENS: 0.15, FIRST_ROUNDS: 0.25}
"""Of what is compared, how much a prediction may be off. First tokens are compared over all rounds of a rate: the
p99 of one play of forty is its second largest, which a few steps decide."""
LEAST_RATES = 3
SEEDS = 3
"""Simulations of a play: who comes last decides much of one, and where a request goes is drawn."""
SPEEDS = (0.97, 0.99, 1.01, 1.03)
"""Steps that are shorter and longer by less than a profile is off by in the median: no prediction tells these apart."""


class Play(msgspec.Struct, frozen=True):
    """Requests as they arrive, of a round at a rate."""

    rate: float
    requests: Sequence[TraceRequest]


class Predictor:
    """Simulates instances of one core each. profile: of one, its engine alone on its core. has_profile: whether the
    instances know it. control_s: what a step takes longer beside control."""

    def __init__(
        self, profile: Profile, instances: int, kv_tokens: int, deadline_s: float, *, has_profile: bool
    ) -> None:
        self._spec = SimSpec(
            instances=instances,
            kv_tokens=kv_tokens,
            profile=profile,
            settings={"profile": profile if has_profile else None},
            deadline_s=deadline_s,
        )
        self.control_s = 0.0

    def alone(self, requests: Sequence[TraceRequest]) -> Unloaded:
        """What these take one after the other."""
        return Unloaded.of([self._outcomes([arriving(one, 0.0)])[0] for one in requests])

    def learn(self, requests: Sequence[TraceRequest], measured: Unloaded) -> None:
        """An instance shares its core with its rManager, and with clients: from here on steps take as much longer than
        the profile says as a token of these requests did, one after the other. What their prompts took says nothing
        of others: an engine that was idle begins slowly."""
        self.control_s = max(0.0, measured.per_token_s - self.alone(requests).per_token_s)
        profile = beside_control(self._spec.profile, self.control_s)
        self._spec = msgspec.structs.replace(self._spec, profile=profile)

    def samples(
        self,
        plays: Sequence[Play],
        names: Iterable[str],
        unloaded: Unloaded,
        earlier: Mapping[str, Sequence[TraceRequest]],
    ) -> Samples:
        """Of each contender that the simulator knows, what it predicts of each play: cases as measured; of FIRST_ROUNDS
        one value for each simulation, those at SPEEDS included. Its instances play one after the other and remember, as
        real ones do: how long outputs were decides how much memory the next ones are given. earlier: the requests that
        a contender served first, one after the other."""
        found: Samples = {}
        for name in names:
            if name in POLICIES:
                for case, values in self._plays(POLICIES[name], earlier.get(name, ()), plays, unloaded).items():
                    found.setdefault(case, {})[name] = values
        return found

    def _plays(
        self, policy: SimPolicyName, earlier: Sequence[TraceRequest], plays: Sequence[Play], unloaded: Unloaded
    ) -> dict[str, list[float]]:
        """Of each play the median of some simulations; of all plays at a rate what each of these has."""
        deadline_s = self._spec.deadline_s
        assert deadline_s is not None
        parts = [*([one] for one in earlier), *(play.requests for play in plays)]
        as_it_is = [self._one_after_the_other(parts, deadline_s, policy, seed) for seed in range(SEEDS)]
        others = [self._one_after_the_other(parts, deadline_s, policy, 0, speed) for speed in SPEEDS]
        simulated = [one[len(earlier) :] for one in (*as_it_is, *others)]
        found: dict[str, list[float]] = {}
        for play, *outcomes in zip(plays, *simulated[:SEEDS], strict=True):
            seen = [dict(summary(one, unloaded, deadline_s)) for one in outcomes]
            for case in (TOKENS, FIRST_HIGH):
                if case in seen[0]:
                    found.setdefault(at(case, play.rate), []).append(statistics.median(one[case] for one in seen))
        for one in simulated:
            by_rate: dict[float, list[list[float]]] = {}
            for play, of_play in zip(plays, one, strict=True):
                by_rate.setdefault(play.rate, []).append(firsts_s(of_play, deadline_s))
            for case, high in of_all_rounds(FIRST_ROUNDS, by_rate).items():
                found.setdefault(case, []).append(high)
        return found

    def _one_after_the_other(
        self,
        parts: Sequence[Sequence[TraceRequest]],
        deadline_s: float,
        policy: SimPolicyName,
        seed: int,
        slow: float = 1.0,
    ) -> list[list[Outcome]]:
        """Of each part, which begins when the deadlines of those before have passed. slow: how many times as long
        everything takes."""
        return one_after_the_other(parts, deadline_s, lambda played: self._outcomes(played, policy, seed, slow))

    def _outcomes(
        self, requests: Sequence[TraceRequest], policy: SimPolicyName = "none", seed: int = 0, slow: float = 1.0
    ) -> Sequence[Outcome]:
        profile = scaled(self._spec.profile, slow)
        spec = msgspec.structs.replace(self._spec, policy=policy, seed=seed, profile=profile)
        return simulate(requests, spec).outcomes


def of_all_rounds(case: str, firsts_s: Mapping[float, Sequence[Sequence[float]]]) -> dict[str, float]:
    """The p99 of times to first token at each rate, by its case there. firsts_s: by rate and round."""
    rates = {rate: list(chain.from_iterable(rounds)) for rate, rounds in firsts_s.items()}
    return {at(case, rate): p99(values) for rate, values in rates.items() if values}


def beside_control(profile: Profile, seconds: float) -> Profile:
    """One whose every step takes so much longer."""

    def longer(curve: tuple[Point, ...]) -> tuple[Point, ...]:
        return tuple(Point(point.size, point.seconds + seconds) for point in curve)

    return msgspec.structs.replace(
        profile,
        step=longer(profile.step),
        prefill=longer(profile.prefill),
        remote_step=longer(profile.remote_step),
        remote_prefill=longer(profile.remote_prefill),
    )


def compared(measured: Samples, predicted: Samples) -> dict[str, str]:
    """By case and contender: medians of what was measured and predicted, and their ratio."""
    return {
        f"{name}, {case}": f"{_of(measured, case, name):.4g} measured, {_of(predicted, case, name):.4g} simulated: "
        f"{_of(predicted, case, name) / _of(measured, case, name):.2f}"
        for case, by_name in predicted.items()
        for name in by_name
        if _of(measured, case, name)
    }


def goals(measured: Samples, predicted: Samples, rates: Sequence[float], names: Iterable[str]) -> tuple[Goal, ...]:
    """Of each contender that was predicted, at all rates that were played."""
    return tuple(_goal(measured, predicted, rates, name, case) for name in names for case in MOST_OFF)


def _goal(measured: Samples, predicted: Samples, rates: Sequence[float], name: str, case: str) -> Goal:
    """Open where fewer rates were played than it wants, or where simulations at other speeds differ among themselves by
    more than is asked for."""
    goal, most = f"simulated {case} to measured, {name}", MOST_OFF[case]
    target = f"within {most:.0%} at {LEAST_RATES} rates"
    ratios = {
        rate: _of(predicted, at(case, rate), name) / _of(measured, at(case, rate), name)
        for rate in rates
        if name in predicted.get(at(case, rate), {}) and _of(measured, at(case, rate), name)
    }
    if not ratios:
        return Goal(goal, target, "not measured", None, "there is nothing to compare with")
    found = ", ".join(f"{ratio:.2f} at {rate:g}/s" for rate, ratio in ratios.items())
    if outside := [rate for rate, ratio in ratios.items() if abs(ratio - 1) > most]:
        spreads = {rate: _spread(predicted[at(case, rate)][name]) for rate in outside}
        why = ", ".join(f"{low:.2f} to {high:.2f} at {rate:g}/s" for rate, (low, high) in spreads.items())
        is_noise = case == FIRST_ROUNDS and all(low < 1 - most or high > 1 + most for low, high in spreads.values())
        why = f"simulations with steps up to 3 % shorter or longer are {why} times as long" if is_noise else ""
        return Goal(goal, target, found, None if is_noise else False, why)
    if len(ratios) < LEAST_RATES:
        return Goal(goal, target, found, None, f"fewer than {LEAST_RATES} rates were played")
    return Goal(goal, target, found, True)


def _spread(values: Sequence[float]) -> tuple[float, float]:
    """Their least and their most, of their median."""
    median = statistics.median(values)
    return min(values) / median, max(values) / median


def _of(samples: Samples, case: str, name: str) -> float:
    """The median of rounds; 0 if there is none."""
    values = samples.get(case, {}).get(name)
    return statistics.median(values) if values else 0.0
