"""SimCluster: what it does to its cluster, that a seed repeats it, and that it sees what it must see."""

from __future__ import annotations

import pytest

from distkv import events
from distkv.config import MembershipSettings
from distkv.control import commands as c
from distkv.control.cluster.gmanager import GManager
from distkv.sim.drawn.cluster import BLOCK, GMANAGER, SimCluster
from tests.sim.parts import check, prompt


def history(seed: int) -> tuple[list[tuple[str, events.ClusterEvent]], float]:
    cluster = SimCluster([12, 20, 20], seed)
    for index, length in enumerate((100, 40, 9)):
        cluster.submit(f"i{index}", f"r{index}", prompt(length, index), 12)
    cluster.run(0.5)
    cluster.kill("i2")
    del cluster.owner["r2"]
    cluster.finish()
    cluster.settle()
    return cluster.events, cluster.clock.now()


def test_a_seed_repeats_a_run_and_another_is_another() -> None:
    assert history(1) == history(1)
    assert history(1) != history(2)


def test_time_moves_only_by_running() -> None:
    cluster = SimCluster([8])
    before = cluster.clock.now()
    cluster.submit("i0", "r", prompt(5), 3)
    while cluster.deliver():
        pass
    assert cluster.clock.now() == before
    assert not cluster.run(1.0) and cluster.clock.now() == pytest.approx(before + 1.0, abs=0.06)
    assert cluster.run(9.0, lambda: True) and cluster.clock.now() == pytest.approx(before + 1.0, abs=0.06)


def test_a_new_incarnation_takes_over_and_the_old_one_owns_nothing() -> None:
    cluster = SimCluster([16, 16, 16])
    cluster.submit("i0", "r", prompt(150), 24)
    assert cluster.run(60, lambda: len(cluster.outcomes["r"].tokens) >= 2)
    cluster.kill("i0")
    cluster.owner.clear()
    joined = (GMANAGER, events.Joined(instance="i0", pid=0, blocks=16))
    assert cluster.events.count(joined) == 1
    cluster.start("i0", 16, incarnation=2)
    assert cluster.run(3.0, lambda: cluster.nodes["i0"].joined)
    cluster.submit("i0", "again", prompt(100), 8)
    cluster.finish()
    check(cluster, "again", prompt(100), 8)
    cluster.settle(12)
    assert cluster.events.count(joined) == 2


def test_an_instance_that_the_gmanager_refuses_ends() -> None:
    cluster = SimCluster([8])
    cluster.start("i\n", 8)
    cluster.run(1.0)
    assert not cluster.nodes["i\n"].alive
    assert any(isinstance(event, events.JoinRefused) for _, event in cluster.events)


def test_after_a_clock_was_set_back_an_instance_joins_as_soon_as_the_former_one_is_silent() -> None:
    cluster = SimCluster([8, 8])
    cluster.kill("i0")
    cluster.start("i0", 8, incarnation=0)
    cluster.run(3.0)
    assert cluster.gm is not None and cluster.gm.ledger.entries["i0"].member.incarnation == 0
    assert cluster.nodes["i0"].alive and cluster.nodes["i1"].rm.members["i0"].incarnation == 0


def test_what_does_not_end_in_time_is_named() -> None:
    cluster = SimCluster([8, 8])
    cluster.submit("i0", "r", prompt(8), 20)
    cluster.freeze("i0")
    with pytest.raises(TimeoutError, match=r"not ended: \['r'\]"):
        cluster.finish(3.0)


def test_the_frozen_get_nothing_and_lose_nothing() -> None:
    cluster = SimCluster([16, 16])
    cluster.freeze("i1")
    waiting = [delivery for channel, delivery in cluster.network.on_its_way() if channel.target == "i1"]
    cluster.run(0.5)
    later = [delivery for channel, delivery in cluster.network.on_its_way() if channel.target == "i1"]
    assert later[: len(waiting)] == waiting
    cluster.freeze("i1", False)
    cluster.run(2.0)
    assert cluster.gm is not None
    assert {m.instance_id: m.state for m in cluster.gm.members()} == {
        "i0": "ready",
        "i1": "ready",
    }


def test_memory_that_does_not_come_back_is_seen() -> None:
    cluster = SimCluster([8, 8])
    cluster.submit("i0", "r", prompt(8), 2)
    cluster.finish()
    cluster.settle()
    cluster.submit("i0", "long", prompt(12), 16)
    cluster.run(1.0, lambda: cluster.outcomes["long"].tokens)
    with pytest.raises(AssertionError, match=r"i0: . of 8 slots are free"):
        cluster.validate_idle()


def test_state_of_the_gmanager_is_checked_after_every_event() -> None:
    cluster = SimCluster([8, 8])
    assert cluster.gm is not None
    cluster.gm.ledger.promise("i0", "r", -1)
    with pytest.raises(AssertionError, match="a promise below 0"):
        cluster.gmanagers[GMANAGER].handle(c.Tick(), cluster.clock.now())


def test_a_version_that_goes_back_is_seen() -> None:
    cluster = SimCluster([8, 8])
    assert cluster.gm is not None and cluster.gm.version > 1
    cluster.gmanagers["gmanager"].machine = GManager(MembershipSettings())
    with pytest.raises(AssertionError, match="went back"):
        cluster.run(1.0)


@pytest.mark.parametrize("idle", [50, pytest.param(400, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_an_idle_cluster_handles_no_more_events_than_heartbeats_need(idle: int) -> None:
    """No ticks without a reason; and the simulated network carries as much for each of many as of few, or they would
    handle the lists of their joining for ever."""
    cluster = SimCluster([4] * idle)
    cluster.run(5.0)  # until the lists have reached all: 500,000 members a second leave a gManager
    before = sum(node.num_events for node in cluster.nodes.values())
    cluster.run(2.0)
    handled = sum(node.num_events for node in cluster.nodes.values()) - before
    assert handled <= idle * 4 * 2.2, "four heartbeats, each a Tick and an acknowledgement"


@pytest.mark.parametrize("pools", [[16, 48], [16, 48, 16]], ids=["its only creditor", "one of two"])
def test_nobody_waits_for_one_whose_memory_is_gone(pools: list[int]) -> None:
    """It waits for a minute for its creditor to come back; younger ones that fit went by it until they had had as much
    as it needs, and then waited as long."""
    cluster = SimCluster(pools)
    cluster.submit("i0", "giant", prompt(40 * BLOCK), 8)
    assert cluster.run(30, lambda: len(cluster.outcomes["giant"].tokens) >= 2)
    cluster.kill("i1")
    for number in range(25):
        cluster.submit("i0", f"s{number}", prompt(2 * BLOCK, number), 4)
        assert cluster.run(5.0, lambda number=number: len(cluster.outcomes[f"s{number}"].tokens) == 4), number
        cluster.run(2.0)
    ended = cluster.outcomes["giant"].ended
    assert ended is None or "did not come back" in ended.reason


def test_what_it_held_elsewhere_is_there_for_others() -> None:
    """After eight tries in vain, and not when it is given up."""
    cluster = SimCluster([20, 20, 20, 20])
    cluster.submit("i0", "giant", prompt(62 * BLOCK), 40)
    assert cluster.run(30, lambda: len(cluster.outcomes["giant"].tokens) >= 2)
    cluster.kill("i3")
    cluster.submit("i1", "other", prompt(30 * BLOCK, 1), 4)
    assert cluster.run(20.0, lambda: len(cluster.outcomes["other"].tokens) == 4)
    assert cluster.outcomes["giant"].ended is None


def test_one_that_holds_memory_of_a_creditor_that_drains_goes_on() -> None:
    """That counts as no memory of the live instances any more, but what lies there stays until it leaves."""
    cluster = SimCluster([30, 30, 30], request_timeout_s=60.0)
    cluster.submit("i0", "r", prompt(65 * BLOCK), 60)
    for node in cluster.nodes.values():
        node.worker.step_s = 0.02
    assert cluster.run(20, lambda: len(cluster.outcomes["r"].tokens) > 2)
    cluster.drain("i1", 60.0)
    cluster.run(0.1)
    cluster.cut_path("i0", "i2")
    cluster.run(1.5)
    cluster.cut_path("i0", "i2", False)
    assert cluster.run(20.0, lambda: len(cluster.outcomes["r"].tokens) == 60)
