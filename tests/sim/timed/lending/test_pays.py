"""On requests that each fit one instance, some of them hardly, sharing memory costs nothing: neither throughput nor the
wait of short ones."""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest

from distkv.sim.run import SimResult, simulate
from distkv.sim.trace import TraceRequest
from distkv.types import PolicyName
from tests.lanes import rest_is_slow
from tests.sim.timed.parts import spec


def crowd(seed: int) -> list[TraceRequest]:
    """Twice as many as two instances of 1,600 tokens serve; one in ten takes most of a pool."""
    random = Random(seed)
    at_s, requests = 0.0, []
    for number in range(50):
        at_s += random.expovariate(8.0)
        is_large = number % 10 == 5
        prompt = random.randint(1200, 1400) if is_large else random.randint(20, 400)
        requests.append(TraceRequest(at_s, prompt, random.randint(20, 150)))
    return requests


def played(policy: PolicyName, plays: int) -> list[SimResult]:
    return [simulate(crowd(seed), spec(policy=policy, seed=seed, checks=False)) for seed in range(plays)]


def documents(seed: int) -> list[TraceRequest]:
    """Every other one takes half of a pool of 1,600 tokens and more, so that no instance runs two of them; more than
    three instances serve."""
    random = Random(seed)
    at_s, requests = 0.0, []
    for number in range(40):
        at_s += random.expovariate(8.0)
        prompt, output = ((700, 850), (100, 200)) if number % 2 else ((20, 40), (20, 60))
        requests.append(TraceRequest(at_s, random.randint(*prompt), random.randint(*output)))
    return requests


@pytest.mark.slow
def test_where_each_instance_has_room_for_one_and_a_half_three_run_on_two() -> None:
    """Nobody of them could begin elsewhere, and small ones need hardly anything of what is free. While who fits its
    instance waited for memory there, three instances gained 1.08."""
    ratios = []
    for seed in range(4):
        alone, sharing = (
            simulate(documents(seed), spec(policy=policy, seed=seed, instances=3, checks=False))
            for policy in ("none", "contract")
        )
        assert all(not one.failed for result in (alone, sharing) for one in result.outcomes)
        assert sharing.counters.avoidable_borrows
        ratios.append(alone.simulated_s / sharing.simulated_s)
    assert fmean(ratios) >= 1.15, ratios


def first_s(result: SimResult) -> float:
    """The mean of those that are not large."""
    return fmean(one.first_s for one in result.outcomes if one.request.prompt_tokens <= 400)


@pytest.mark.parametrize("plays", rest_is_slow([4, 16]))
def test_a_load_that_fits_is_served_as_by_those_who_share_nothing(plays: int) -> None:
    """No borrow of a large one makes those wait that come next."""
    alone, sharing = played("none", plays), played("contract", plays)
    assert all(not one.failed for result in (*alone, *sharing) for one in result.outcomes)
    ratios = [own.simulated_s / shared.simulated_s for own, shared in zip(alone, sharing, strict=True)]
    assert fmean(ratios) >= 0.98, ratios
    waits = [first_s(shared) / first_s(own) for own, shared in zip(alone, sharing, strict=True)]
    assert fmean(waits) <= 1.1, waits
