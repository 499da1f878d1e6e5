"""What a gManager says of others costs no token: a span is lost by evidence of its debtor's own, or not at all."""

from __future__ import annotations

import msgspec
import pytest

from distkv import events
from distkv.control import commands as c
from distkv.sim.drawn.cluster import SimCluster
from distkv.wire.messages import to_rmanager as tr
from distkv.wire.messages.common import Member
from tests.sim.parts import check, prompt

PROMPT, MAX_TOKENS = prompt(150), 40


def spread(seed: int) -> SimCluster:
    """A request that lies on three instances, in the middle of its output."""
    cluster = SimCluster([20, 20, 20], seed, request_timeout_s=5.0)
    cluster.submit("i0", "r", PROMPT, MAX_TOKENS)
    assert cluster.run(60, lambda: len(cluster.outcomes["r"].tokens) >= 4)
    return cluster


def tell(cluster: SimCluster, name: str, *members: Member) -> None:
    """A gManager's word, as it comes by an instance's own connection to it."""
    message = tr.Members(version=1, members=members)
    cluster.handle(name, c.FromGManager(message))


def lost_nothing(cluster: SimCluster) -> None:
    cluster.finish()
    check(cluster, "r", PROMPT, MAX_TOKENS)
    assert not [event for _, event in cluster.events if isinstance(event, events.SpanLost)]
    assert all(node.rm.state.counters.recomputed_tokens == 0 for node in cluster.nodes.values())
    cluster.settle(8)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("changed", [{"state": "dead"}, {"state": "unreachable"}, {"incarnation": 5}])
def test_a_list_that_says_the_living_are_gone_costs_no_token(seed: int, changed: dict[str, object]) -> None:
    """Else a gManager that is busy for five seconds costs 6 spans, 784 tokens."""
    cluster = spread(seed)
    tell(cluster, "i0", *(msgspec.structs.replace(node.member, **changed) for node in cluster.nodes.values()))
    cluster.run(5.0, lambda: cluster.outcomes["r"].done)
    lost_nothing(cluster)


@pytest.mark.parametrize("seed", range(4))
def test_two_gmanagers_that_contradict_each_other_cost_no_token(seed: int) -> None:
    cluster = spread(seed)
    one = [node.member for node in cluster.nodes.values()]
    other = [msgspec.structs.replace(member, state="dead") for member in one]
    for turn in range(20):
        for name in cluster.nodes:
            tell(cluster, name, *(one if turn % 2 else other))
        cluster.run(0.3)
    lost_nothing(cluster)


@pytest.mark.parametrize("seed", range(4))
def test_a_debtor_that_is_listed_dead_keeps_its_loans(seed: int) -> None:
    cluster = spread(seed)
    dead = msgspec.structs.replace(cluster.nodes["i0"].member, state="dead")
    for name in ("i1", "i2"):
        tell(cluster, name, dead)
    cluster.run(6.0, lambda: cluster.outcomes["r"].done)
    lost_nothing(cluster)


def test_what_a_debtor_that_ended_had_borrowed_is_back_when_the_lease_ends() -> None:
    cluster = spread(0)
    lent = [node.rm.state.loans.num_blocks for node in cluster.nodes.values()]
    assert sum(lent) > 0
    cluster.kill("i0")
    cluster.owner.clear()
    cluster.run(4.2)
    assert all(node.rm.state.loans.num_blocks == 0 for node in cluster.nodes.values())


@pytest.mark.parametrize("seed", range(4))
def test_a_debtor_that_restarted_gives_its_former_loans_back_by_its_own_words(seed: int) -> None:
    cluster = spread(seed)
    cluster.kill("i0")
    cluster.owner.clear()
    cluster.start("i0", 20, incarnation=2)
    assert cluster.run(3.0, lambda: cluster.nodes["i0"].joined)
    before = cluster.clock.now()
    cluster.submit("i0", "again", PROMPT, 4)
    cluster.finish()
    assert cluster.clock.now() - before < 2.0, "it did not wait for the leases of its former life to end"
    check(cluster, "again", PROMPT, 4)
    cluster.settle(8)


@pytest.mark.parametrize("seed", range(4))
def test_a_creditor_that_really_restarted_is_found_by_its_own_answer(seed: int) -> None:
    """Its address is answered by a new process: what lay in the old one is computed again at once."""
    cluster = spread(seed)
    cluster.kill("i1")
    cluster.start("i1", 20, incarnation=2)
    cluster.run(3.0)
    restarted = ("i0", events.PeerLost(peer="i1", restarted=True))
    assert restarted in cluster.events and cluster.nodes["i0"].rm.state.members["i1"].incarnation == 2
    cluster.finish()
    check(cluster, "r", PROMPT, MAX_TOKENS)
    cluster.settle(8)
