"""What the simulator predicts of the plays of a benchmark, by a profile of the machine that plays them, beside what was
measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from distkv.bench.harness.alternate import Samples
from distkv.bench.harness.report import Goal
from distkv.bench.pooling.contenders import POLICIES
from distkv.bench.pooling.summary import FIRST_HIGH, TOKENS, at, summary
from distkv.sim.outcome import Outcome, Unloaded
from distkv.sim.run import simulate
from distkv.sim.spec import SimPolicyName, SimSpec
from distkv.sim.trace import TraceRequest
from distkv.wire.messages.profile import Point, Profile

MOST_OFF: Mapping[str, float] = {TOKENS: 0.15, FIRST_HIGH: 0.25}
"""Of what is compared, how much a prediction may be off."""
LEAST_RATES = 3
SEEDS = 3
"""Simulations of a play: who comes last decides much of one, and where a request goes is drawn."""


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
        return Unloaded.of([self._outcomes([_at(one, 0.0)])[0] for one in requests])

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
        """Of each contender that the simulator knows, what it predicts of each play: cases as measured. Its instances
        play one after the other and remember, as real ones do: how long outputs were decides how much memory the next
        ones are given. earlier: the requests that a contender served first, one after the other."""
        found: Samples = {}
        for name in names:
            if name in POLICIES:
                for case, values in self._plays(POLICIES[name], earlier.get(name, ()), plays, unloaded).items():
                    found.setdefault(case, {})[name] = values
        return found

    def _plays(
        self, policy: SimPolicyName, earlier: Sequence[TraceRequest], plays: Sequence[Play], unloaded: Unloaded
    ) -> dict[str, list[float]]:
        """Of each play the median of some simulations."""
        deadline_s = self._spec.deadline_s
        assert deadline_s is not None
        parts = [*([one] for one in earlier), *(play.requests for play in plays)]
        simulated = [
            self._one_after_the_other(parts, deadline_s, policy, seed)[len(earlier) :] for seed in range(SEEDS)
        ]
        found: dict[str, list[float]] = {}
        for play, *outcomes in zip(plays, *simulated, strict=True):
            seen = [dict(summary(one, unloaded, deadline_s)) for one in outcomes]
            for case in MOST_OFF:
                if case in seen[0]:
                    found.setdefault(at(case, play.rate), []).append(statistics.median(one[case] for one in seen))
        return found

    def _one_after_the_other(
        self, parts: Sequence[Sequence[TraceRequest]], deadline_s: float, policy: SimPolicyName, seed: int
    ) -> list[Sequence[Outcome]]:
        """Of each part, which begins when the deadlines of those before have passed."""
        begins_s, requests = [0.0], list[TraceRequest]()
        for part in parts:
            requests += (_at(one, begins_s[-1] + one.arrival_s) for one in part)
            begins_s.append(requests[-1].arrival_s + deadline_s)
        outcomes = iter(self._outcomes(requests, policy, seed))
        return [
            [msgspec.structs.replace(one, request=request) for request, one in zip(part, outcomes, strict=False)]
            for part in parts
        ]

    def _outcomes(
        self, requests: Sequence[TraceRequest], policy: SimPolicyName = "none", seed: int = 0
    ) -> Sequence[Outcome]:
        return simulate(requests, msgspec.structs.replace(self._spec, policy=policy, seed=seed)).outcomes


def _at(request: TraceRequest, arrival_s: float) -> TraceRequest:
    return msgspec.structs.replace(request, arrival_s=arrival_s)


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
    if not all(abs(ratio - 1) <= most for ratio in ratios.values()):
        return Goal(goal, target, found, False)
    if len(ratios) < LEAST_RATES:
        return Goal(goal, target, found, None, f"fewer than {LEAST_RATES} rates were played")
    return Goal(goal, target, found, True)


def _of(samples: Samples, case: str, name: str) -> float:
    """The median of rounds; 0 if there is none."""
    values = samples.get(case, {}).get(name)
    return statistics.median(values) if values else 0.0
