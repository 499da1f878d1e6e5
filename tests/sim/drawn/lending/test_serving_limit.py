"""A creditor whose serving makes its own steps too long lends less, and nobody's output changes by it."""

from __future__ import annotations

import pytest

from distkv import events
from distkv.sim.drawn.cluster import SimCluster
from tests.lanes import rest_is_slow
from tests.sim.parts import check, prompt

GUEST, GUEST_OUT = prompt(300), 850
OWN, OWN_OUT = prompt(40, 7), 850
TIMES = {"reclaim_after_s": 0.3, "reclaim_deadline_s": 0.5, "lease_s": 0.8, "lease_margin_s": 0.1}
STEP_S, SERVE_S = 0.02, 0.002


def guest_at_i1(seed: int, **settings: float) -> SimCluster:
    """A request of i0, most of which lies at i1, which begins a request of its own; i0 has room for all of it since."""
    cluster = SimCluster([], seed)
    cluster.start("i0", 300, lending_cap_blocks=0, **TIMES)
    cluster.start("i1", 400, **TIMES, **settings)
    cluster.nodes["i1"].worker.step_s, cluster.nodes["i1"].worker.serve_s = STEP_S, SERVE_S
    cluster.run(1.0)
    cluster.submit("i0", "before", prompt(1000), 300)
    cluster.run(0.2)
    cluster.submit("i0", "guest", GUEST, GUEST_OUT)
    assert cluster.run(30, lambda: len(cluster.outcomes["guest"].tokens) >= 2)
    cluster.cancel("before")
    assert cluster.spans("guest").get("i1", 0) >= 100
    cluster.submit("i1", "own", OWN, OWN_OUT)
    return cluster


def reclaims(cluster: SimCluster) -> list[events.Reclaimed]:
    return [event for name, event in cluster.events if name == "i1" and isinstance(event, events.Reclaimed)]


@pytest.mark.parametrize("seed", rest_is_slow(range(2)))
def test_what_is_too_much_goes_home_and_all_get_their_answers(seed: int) -> None:
    cluster = guest_at_i1(seed)
    state = cluster.nodes["i1"].rm.state
    serving, lent_blocks = state.serving, state.loans.num_blocks
    assert cluster.run(20, lambda: serving.is_limited)
    assert cluster.run(20, lambda: not serving.is_over) and not cluster.outcomes["own"].done
    assert reclaims(cluster)[0].why == "serving its debtors takes too long"
    assert 0 < sum(event.blocks for event in reclaims(cluster)) < lent_blocks, "no more is reclaimed than must be"
    cluster.finish()
    check(cluster, "guest", GUEST, GUEST_OUT)
    check(cluster, "own", OWN, OWN_OUT)
    cluster.settle()


@pytest.mark.slow
def test_without_a_limit_all_stays() -> None:
    cluster = guest_at_i1(0, max_serve_fraction=1.0)
    cluster.finish()
    assert not reclaims(cluster)
    check(cluster, "guest", GUEST, GUEST_OUT)
    cluster.settle()


def test_a_debtor_turns_to_others_and_does_not_ask_again_while_nothing_is_lent() -> None:
    cluster = SimCluster([], 5)
    cluster.start("i0", 60, lending_cap_blocks=0, **TIMES)
    for name in ("i1", "i2"):
        cluster.start(name, 400, **TIMES)
    cluster.run(1.0)
    serving = cluster.nodes["i1"].rm.state.serving
    cluster.submit("i1", "own", OWN, OWN_OUT)
    assert cluster.run(5, lambda: len(cluster.outcomes["own"].tokens) >= 2)
    for _ in range(50):
        serving.on_step(STEP_S, serving._last_total_s + 0.9 * STEP_S, True, cluster.clock.now())
    assert serving.is_limited
    cluster.submit("i0", "guest", GUEST, 20)
    cluster.finish()
    check(cluster, "guest", GUEST, 20)
    lent = [name for name, event in cluster.events if isinstance(event, events.Lent)]
    assert lent and set(lent) == {"i2"}
    assert cluster.nodes["i0"].rm.state.counters.refusals <= 1
    cluster.settle()
