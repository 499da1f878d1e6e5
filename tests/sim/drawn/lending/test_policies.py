"""Clusters under each policy: who borrows, and what is refused."""

from __future__ import annotations

from distkv.config import AdviceSettings
from distkv.control import commands as c
from distkv.sim.drawn.cluster import GMANAGER, SimCluster
from distkv.wire.messages.to_rmanager import HeartbeatAck, Members
from tests.sim.parts import check, prompt


def test_where_nobody_shares_memory_nobody_borrows_and_what_is_too_large_for_one_is_refused() -> None:
    cluster = SimCluster([12, 20, 20], advice=AdviceSettings(policy="none"))
    cluster.submit("i0", "large", prompt(100), 12)
    cluster.run(1.0)
    ended = cluster.outcomes["large"].ended
    assert ended is not None and (ended.kind, ended.pool_tokens) == ("refused", 12 * 4)
    for number in range(6):
        cluster.submit("i0", f"r{number}", prompt(30, number), 12)
    cluster.finish()
    for number in range(6):
        check(cluster, f"r{number}", prompt(30, number), 12)
    assert not any(node.rm.state.counters.moved_blocks for node in cluster.nodes.values())
    assert cluster.gm is not None
    assert all(entry.heartbeat and not entry.heartbeat.lendable_blocks for entry in cluster.gm.ledger.entries.values())


def test_nobody_borrows_also_while_no_gmanager_answers() -> None:
    cluster = SimCluster([12, 20, 20], advice=AdviceSettings(policy="none"))
    cluster.kill_gmanager()
    cluster.submit("i0", "large", prompt(100), 12)
    cluster.submit("i0", "r", prompt(30), 12)
    cluster.finish()
    ended = cluster.outcomes["large"].ended
    assert ended is not None and ended.kind == "refused"
    check(cluster, "r", prompt(30), 12)


def test_a_gmanager_that_comes_back_with_another_policy_is_followed() -> None:
    cluster = SimCluster([12, 20, 20], advice=AdviceSettings(policy="none"))
    cluster.gmanagers[GMANAGER].advice = AdviceSettings(policy="contract")
    cluster.kill_gmanager()
    cluster.restart_gmanager()
    cluster.run(10.0)
    cluster.submit("i0", "large", prompt(100), 12)
    cluster.finish()
    check(cluster, "large", prompt(100), 12)


def test_a_policy_of_a_later_version_is_as_contract() -> None:
    cluster = SimCluster([12, 20])
    state = cluster.nodes["i0"].rm.state
    cluster.handle("i0", c.FromGManager(HeartbeatAck(seq=0, policy="none")))
    assert not state.shares_memory
    cluster.handle("i0", c.FromGManager(Members(version=0, policy="foresight")))
    assert state.shares_memory and state.lendable() > 0
