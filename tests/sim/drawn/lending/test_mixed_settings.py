"""Instances with different leases, margins and heartbeats lend to each other: safely, and as fast as the slower."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import permutations

import pytest

from distkv import events
from distkv.sim.drawn.cluster import SimCluster
from tests.lanes import rest_is_slow
from tests.sim.parts import check, prompt

USUAL = {"lease_s": 4.0, "lease_margin_s": 0.5, "heartbeat_s": 0.5}
SHORT = {"lease_s": 0.4, "lease_margin_s": 0.05, "heartbeat_s": 0.1}
LONG = {"lease_s": 20.0, "lease_margin_s": 3.0, "heartbeat_s": 1.5}
WIDE = {"lease_s": 4.0, "lease_margin_s": 3.5, "heartbeat_s": 2.0}
KINDS = {"usual": USUAL, "short": SHORT, "long": LONG, "wide": WIDE}
CARRIED = 30
"""Messages that arrive in a tick where time is measured. `run` draws how many, on average as many: the same request
then takes 0.5 to 1.35 s, which says nothing of leases."""


def run_steadily(cluster: SimCluster, until: Callable[[], object], seconds: float = 60.0) -> None:
    """Run with a network that carries equally much in every tick; which channel delivers next is drawn all the same."""
    end = cluster.clock.now() + seconds
    while not until():
        assert cluster.clock.now() < end, f"not within {seconds:g} s"
        for _ in range(CARRIED):
            cluster.deliver()
        cluster.tick()


@cache
def served_in(debtor: str, creditor: str) -> float:
    """Seconds for a request that lies on three instances; no token of it is computed twice."""
    cluster = SimCluster([], seed=1)
    cluster.start("i0", 16, **KINDS[debtor])
    for name in ("i1", "i2"):
        cluster.start(name, 24, **KINDS[creditor])
    cluster.run(3.0)
    began = cluster.clock.now()
    cluster.submit("i0", "r", prompt(150), 60)
    run_steadily(cluster, lambda: cluster.outcomes["r"].done)
    took = cluster.clock.now() - began
    check(cluster, "r", prompt(150), 60)
    assert cluster.nodes["i0"].rm.state.counters.recomputed_tokens == 0
    assert not [event for _, event in cluster.events if isinstance(event, events.SpanLost | events.LeaseExpired)]
    cluster.settle(25.0)
    return took


@pytest.mark.parametrize(("debtor", "creditor"), rest_is_slow(permutations(KINDS, 2), 2))
def test_unequal_settings_cost_no_token_and_no_time(debtor: str, creditor: str) -> None:
    """A lease believed for the debtor's time, or a margin longer than the lease, would lose every span."""
    slower = max(served_in(kind, kind) for kind in (debtor, creditor))
    assert served_in(debtor, creditor) <= 1.1 * slower


@pytest.mark.parametrize("creditor", ["short", "usual"])
def test_a_creditor_has_its_memory_back_after_its_own_lease(creditor: str) -> None:
    """However long the lease is that its debtor wishes for."""
    cluster = SimCluster([])
    cluster.start("i0", 16, **LONG)
    cluster.start("i1", 40, **KINDS[creditor])
    cluster.run(3.0)
    cluster.submit("i0", "r", prompt(100), 80)
    assert cluster.run(30, lambda: cluster.outcomes["r"].tokens)
    loans = cluster.nodes["i1"].rm.state.loans
    assert loans.num_spans
    cluster.freeze("i0")
    assert cluster.run(KINDS[creditor]["lease_s"] + 0.2, lambda: not loans.num_spans)
    cluster.freeze("i0", False)
    cluster.finish()
    check(cluster, "r", prompt(100), 80)
    cluster.settle(25.0)
