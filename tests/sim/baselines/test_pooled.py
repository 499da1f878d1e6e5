"""The oracle: N instances as one, at no cost."""

from __future__ import annotations

import pytest

from distkv.control.performance.model import PerformanceModel
from distkv.sim.baselines.pooled import pooled
from distkv.sim.run import simulate
from tests.sim.timed.parts import profile, spec, trace


def test_it_has_the_memory_and_the_arithmetic_of_all() -> None:
    known = profile()
    one = pooled(known, 4, 1600)
    alone, together = PerformanceModel(known), PerformanceModel(one.profile)
    assert one.kv_tokens == 6400
    assert together.step_s(8, 4000) == pytest.approx(alone.step_s(2, 1000))
    assert together.prefill_s(500, 100) == pytest.approx(alone.prefill_s(500, 100) / 4)


def test_what_others_of_the_host_cost_each_it_costs_this_one() -> None:
    known = profile(crowded_times=1.5, crowded_step_s=0.001)
    alone, together = PerformanceModel(known), PerformanceModel(pooled(known, 2, 1600).profile)
    for batch in (1, 2, 4):
        full_s = alone.step_s(batch, 1600, busy=True)
        assert together.step_s(2 * batch, 3200, busy=True) == pytest.approx(full_s, rel=0.01)
        assert together.step_s(2 * batch, 0, busy=True) < alone.step_s(batch, 0, busy=True)
    chunk_s = alone.base_s(0, 500)
    assert together.base_s(0, 500) == pytest.approx(alone.crowding(chunk_s).times * chunk_s / 2, rel=0.03)


def test_it_runs_what_two_instances_have_no_room_for_each() -> None:
    requests = trace(*((0.0, 900, 100) for _ in range(3)))
    alone = simulate(requests, spec(policy="none"))
    together = simulate(requests, spec(policy="single", single=pooled(profile(), 2, 1600)))
    assert together.simulated_s < 0.7 * alone.simulated_s
    assert not together.counters.preemptions
