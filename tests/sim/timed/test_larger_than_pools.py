"""Requests that no pool holds alone, several at once: the memory of all is for one of them at a time."""

from __future__ import annotations

import pytest

from distkv.sim.run import simulate
from tests.sim.timed.parts import profile, spec, trace

NUM, TOKENS = 8, 2826


@pytest.mark.parametrize("output_tokens", [10, 400])
@pytest.mark.parametrize("seed", range(3))
def test_they_take_hardly_longer_at_once_than_one_after_the_other(seed: int, output_tokens: int) -> None:
    """Long ones were preempted for those that waited; after short ones memory was kept for who had ended, and whoever
    waited asked twice a second: 1.3 and 1.8 times as long."""
    pools = spec(instances=3, kv_tokens=1024, seed=seed, settings={"profile": profile()})
    lengths = TOKENS - output_tokens, output_tokens
    alone = simulate(trace((0.0, *lengths)), pools)
    together = simulate(trace(*((0.001 * number, *lengths) for number in range(NUM))), pools)
    assert all(outcome.times_s for outcome in together.outcomes)
    ends_s = [one.request.arrival_s + one.times_s[-1] for one in together.outcomes]
    assert max(ends_s) <= 1.1 * NUM * alone.outcomes[0].times_s[-1]
