"""The bound: N instances that compute each by itself, over one pool."""

from __future__ import annotations

from distkv.control.blocks import SlotState
from distkv.sim.run import simulate
from distkv.sim.timed.one_pool import OnePool
from tests.sim.timed.parts import spec, trace


def test_what_one_takes_is_free_at_none() -> None:
    pools: list[OnePool] = []
    first, second = OnePool(10, pools), OnePool(10, pools)
    taken = first.allocate(7, SlotState.LOCAL)
    assert taken is not None and (first.num_free, second.num_free) == (3, 3)
    assert second.allocate(4, SlotState.LOCAL) is None
    assert second.allocate(3, SlotState.LOCAL) is not None and first.num_free == 0
    first.free(taken, SlotState.LOCAL)
    assert (first.num_free, second.num_free) == (7, 7)
    first.validate()
    second.validate()


def test_three_run_where_two_pools_have_room_for_one_and_a_half_each() -> None:
    requests = trace(*((0.0, 900, 100) for _ in range(3)))
    apart = simulate(requests, spec(policy="none"))
    together = simulate(requests, spec(policy="none", one_pool=True))
    assert together.simulated_s < 0.8 * apart.simulated_s
    assert not any(outcome.failed for outcome in together.outcomes) and not together.counters.borrows


def test_who_waits_at_one_begins_when_another_has_ended() -> None:
    """The second takes all but what the first has; it waits for nothing else."""
    requests = trace((0.0, 2000, 2), (0.1, 3000, 100))
    found = simulate(requests, spec(policy="none", one_pool=True)).outcomes
    assert not any(outcome.failed for outcome in found)
    first_ends_s = found[0].times_s[-1]
    alone = simulate(requests[1:], spec(policy="none", one_pool=True)).outcomes[0]
    assert found[1].first_s < first_ends_s - 0.1 + alone.first_s + 0.1
