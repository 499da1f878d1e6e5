"""Requests that no pool holds take turns, under each policy that shares memory, and none is computed twice."""

from __future__ import annotations

import pytest

from distkv.sim.run import simulate
from distkv.types import PolicyName
from tests.lanes import rest_is_slow
from tests.sim.timed.parts import spec, trace


@pytest.mark.parametrize("policy", ["contract", "greedy"])
@pytest.mark.parametrize("seed", rest_is_slow(range(3)))
def test_nobody_stops_one_that_runs_for_one_that_cannot_begin(policy: PolicyName, seed: int) -> None:
    """Four on two pools of 1,600 tokens. Under `greedy` those that waited had whichever ran preempted for each rBlock
    that it grew by: 50 preemptions, and three times as long."""
    requests = trace(*((0.3 * number, 1700, 400) for number in range(4)))
    result = simulate(requests, spec(policy=policy, seed=seed))
    assert not any(outcome.failed for outcome in result.outcomes)
    assert (result.counters.preemptions, result.counters.recomputed_tokens) == (0, 0)
    assert result.simulated_s < 45
