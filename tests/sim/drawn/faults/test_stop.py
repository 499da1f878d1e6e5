"""Everything is stopped at the same moment: what can finish does, what cannot fails in words, and the stop takes no
longer than that."""

from __future__ import annotations

from random import Random

import pytest

from distkv.sim.drawn.cluster import SimCluster
from tests.sim.history import History, actions_of
from tests.sim.parts import check, prompt

TIMEOUT_S = 30.0
MOST_S = 3.0
"""For a stop when nothing can finish."""


def stop_all(cluster: SimCluster, *, with_gmanager: bool = False, apart_s: float = 0.0) -> float:
    """Drain all that live, in an order that is drawn, so far apart; returns how long it takes until all have left."""
    began = cluster.clock.now()
    names = [name for name, node in cluster.nodes.items() if node.runs]
    for name in cluster.random.sample(names, len(names)):
        cluster.drain(name, TIMEOUT_S)
        cluster.run(apart_s)
    if with_gmanager:
        cluster.kill_gmanager()
    assert cluster.run(2 * TIMEOUT_S, lambda: all(cluster.nodes[name].exited for name in names))
    exits = [cluster.nodes[name].exited for name in names]
    assert all(one is not None and (one.code, one.reason) == (0, "drained") for one in exits), exits
    return cluster.clock.now() - began


@pytest.mark.parametrize("with_gmanager", [False, True])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("pools", "length", "max_tokens"), [([16, 16, 16], 100, 20), ([16, 16], 60, 50)])
def test_a_pooled_request_finishes_before_its_creditors_leave(
    pools: list[int], length: int, max_tokens: int, seed: int, with_gmanager: bool
) -> None:
    """Their memory stays where it is: to bring it home would take the room that the request needs to grow into."""
    cluster = SimCluster(pools, seed)
    cluster.submit("i0", "r", prompt(length), max_tokens)
    assert cluster.run(60, lambda: len(cluster.outcomes["r"].tokens) >= 2) and len(cluster.spans("r")) > 1
    assert stop_all(cluster, with_gmanager=with_gmanager) < 1.0
    check(cluster, "r", prompt(length), max_tokens)


@pytest.mark.parametrize("seed", range(6))
def test_a_pooled_request_takes_as_long_as_it_needs_while_its_creditors_wait(seed: int) -> None:
    """Also where some get their signal a little later, and beyond the first reminders."""
    cluster = SimCluster([16, 200], seed, max_num_batched_tokens=8)
    cluster.network.loss = 0.05
    cluster.submit("i0", "r", prompt(60), 120)
    assert cluster.run(60, lambda: len(cluster.outcomes["r"].tokens) >= 2)
    cluster.stall_steps("i0")
    for name in ("i1", "i0"):
        cluster.drain(name, TIMEOUT_S)
        cluster.run(0.3)
    cluster.run(4.0)
    assert not cluster.outcomes["r"].done and cluster.nodes["i1"].exited is None
    cluster.stall_steps("i0", False)
    assert cluster.run(10.0, lambda: all(node.exited for node in cluster.nodes.values()))
    check(cluster, "r", prompt(60), 120)
    assert cluster.nodes["i0"].rm.state.counters.recomputed_tokens == 0


@pytest.mark.parametrize("with_gmanager", [False, True])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("pools", "length", "max_tokens"), [([16, 200], 60, 700), ([16, 16, 16], 8, 170)])
def test_a_request_grows_on_at_creditors_that_drain(
    pools: list[int], length: int, max_tokens: int, seed: int, with_gmanager: bool
) -> None:
    """It lacks most of its memory yet when all are stopped. Without a gManager each loan takes a third of a second."""
    cluster = SimCluster(pools, seed)
    cluster.submit("i0", "r", prompt(length), max_tokens)
    assert cluster.run(60, lambda: len(cluster.outcomes["r"].tokens) >= 2)
    assert stop_all(cluster, with_gmanager=with_gmanager) < TIMEOUT_S
    check(cluster, "r", prompt(length), max_tokens)
    assert cluster.nodes["i0"].rm.state.counters.recomputed_tokens == 0


@pytest.mark.parametrize("with_gmanager", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_a_request_for_which_nobody_has_memory_fails_at_once_and_says_so(seed: int, with_gmanager: bool) -> None:
    """It has borrowed nothing yet, and those that drain begin no new loans."""
    cluster = SimCluster([16, 24], seed)
    cluster.submit("i1", "other", prompt(60), 12)
    assert cluster.run(60, lambda: len(cluster.outcomes["other"].tokens) >= 2)
    cluster.stall_steps("i1")
    cluster.submit("i0", "r", prompt(56), 40)
    assert cluster.run(60, lambda: len(cluster.outcomes["r"].tokens) >= 2) and list(cluster.spans("r")) == ["i0"]
    for name in ("i0", "i1"):
        cluster.drain(name, TIMEOUT_S)
    if with_gmanager:
        cluster.kill_gmanager()
    outcome = cluster.outcomes["r"]
    assert cluster.run(MOST_S, lambda: outcome.done)
    assert outcome.ended is not None and outcome.ended.retryable
    so_far = f"nobody is left to lend it memory after {len(outcome.tokens)} of 40 tokens"
    assert outcome.ended.reason == f"instance i0 is draining, and {so_far}"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("loss", [0.0, 0.05])
def test_a_creditor_that_drains_alone_lends_on_until_the_request_has_ended(seed: int, loss: float) -> None:
    """Nobody else could hold it: it stood still until the creditor's time was up, and failed."""
    cluster = SimCluster([16, 24], seed)
    cluster.network.loss = loss
    cluster.submit("i0", "r", prompt(60), 80)
    assert cluster.run(60, lambda: len(cluster.outcomes["r"].tokens) >= 10) and len(cluster.spans("r")) > 1
    cluster.drain("i1", TIMEOUT_S)
    assert cluster.run(10.0, lambda: cluster.nodes["i1"].exited is not None)
    check(cluster, "r", prompt(60), 80)
    left = cluster.nodes["i1"].exited
    assert left is not None and (left.code, left.reason) == (0, "drained")
    assert cluster.nodes["i0"].rm.state.counters.recomputed_tokens == 0


@pytest.mark.parametrize("seed", range(4))
def test_one_that_runs_alone_waits_for_a_creditor_that_drains_and_is_full_for_a_moment(seed: int) -> None:
    """It was preempted, and what it had there was lent to nobody any more."""
    cluster = SimCluster([16, 40], seed, request_timeout_s=10.0)
    for node in cluster.nodes.values():
        node.worker.step_s = 0.02
    cluster.submit("i1", "own", prompt(50, 1), 20)
    assert cluster.run(20, lambda: len(cluster.outcomes["own"].tokens) >= 2)
    cluster.stall_steps("i1")
    cluster.submit("i0", "r", prompt(80), 100)
    assert cluster.run(20, lambda: len(cluster.outcomes["r"].tokens) >= 5) and set(cluster.spans("r")) == {"i0", "i1"}
    cluster.drain("i1", TIMEOUT_S)
    assert cluster.run(6, lambda: cluster.nodes["i0"].rm.state.scheduler.stalled)
    cluster.run(3.0)
    assert not cluster.outcomes["r"].done
    cluster.stall_steps("i1", False)
    assert cluster.run(10.0, lambda: cluster.nodes["i1"].exited is not None)
    check(cluster, "r", prompt(80), 100)
    assert cluster.nodes["i0"].rm.state.counters.preemptions == 0


@pytest.mark.parametrize("seed", range(4))
def test_what_another_creditor_lost_is_lent_by_one_that_drains(seed: int) -> None:
    """It has memory of the request, and room; the request waited until its time was up, and failed."""
    cluster = SimCluster([16, 100, 24], seed, request_timeout_s=20.0)
    for node in cluster.nodes.values():
        node.worker.step_s = 0.02
    cluster.submit("i1", "filler", prompt(340), 12)  # so that i2 has more at first
    assert cluster.run(5, lambda: len(cluster.outcomes["filler"].tokens) >= 1)
    cluster.stall_steps("i1")
    cluster.run(1.2)
    cluster.submit("i0", "r", prompt(180), 200)
    assert cluster.run(60, lambda: len(cluster.outcomes["r"].tokens) >= 2) and len(cluster.spans("r")) == 3
    cluster.stall_steps("i1", False)
    assert cluster.run(5, lambda: cluster.outcomes["filler"].done)
    cluster.drain("i1", TIMEOUT_S)
    cluster.run(0.1)
    cluster.kill("i2")
    assert cluster.run(15.0, lambda: cluster.nodes["i1"].exited is not None)
    check(cluster, "r", prompt(180), 200)


@pytest.mark.parametrize("seed", range(4))
def test_what_waits_in_queues_is_handed_back_and_holds_nothing_up(seed: int) -> None:
    cluster = SimCluster([16, 16, 16], seed, max_num_seqs=2)
    cluster.submit("i0", "r", prompt(100), 30)
    assert cluster.run(60, lambda: len(cluster.outcomes["r"].tokens) >= 2)
    for number in range(100):
        cluster.submit(f"i{number % 3}", f"q{number}", prompt(40, number), 140)
    assert stop_all(cluster) < MOST_S
    check(cluster, "r", prompt(100), 30)
    waited = [cluster.outcomes[f"q{number}"] for number in range(100)]
    assert sum(not one.tokens for one in waited) >= 90
    assert all(one.finish or (one.ended is not None and one.ended.retryable) for one in waited)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_borrowed_moves_on_where_somebody_stays(seed: int) -> None:
    """A debtor and its creditor drain, a third instance does not: the creditor need not wait for the request."""
    cluster = SimCluster([16, 24, 64], seed)
    cluster.submit("i0", "r", prompt(100), 40)
    assert cluster.run(60, lambda: len(cluster.outcomes["r"].tokens) >= 2)
    (creditor, *_) = [name for name in cluster.spans("r") if name != "i0"]
    stays = next(name for name in ("i1", "i2") if name != creditor)
    cluster.drain("i0", TIMEOUT_S)
    cluster.drain(creditor, TIMEOUT_S)
    assert cluster.run(20.0, lambda: cluster.nodes["i0"].exited and cluster.nodes[creditor].exited)
    check(cluster, "r", prompt(100), 40)
    assert cluster.nodes[stays].runs


@pytest.mark.parametrize("first", range(0, 60, 15))
def test_whatever_happened_before_a_stop_of_all_ends_soon(first: int) -> None:
    """Random histories, stopped on the way: no request is left without an end, no instance without an exit."""
    for seed in range(first, first + 15):
        history, random = History(seed), Random(f"stop of {seed}")
        cluster = history.cluster
        try:
            for action in actions_of(seed):
                history.act(*action)
            for name, node in cluster.nodes.items():
                if node.alive and node.frozen:
                    cluster.freeze(name, False)
                cluster.stall_steps(name, False)
            history.forget_requests_of_the_dead()
            took_s = stop_all(cluster, with_gmanager=random.random() < 0.3, apart_s=random.choice([0.0, 0.0, 0.2]))
            assert took_s < 15.0, "a lease, a creditor that says nothing, and PATIENCE_S at most"
            for request_id in cluster.owner:
                assert cluster.outcomes[request_id].done, request_id
        except Exception as error:
            error.add_note(f"the history of seed {seed}, then a stop")
            raise
