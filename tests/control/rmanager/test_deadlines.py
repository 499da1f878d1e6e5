"""`next_deadline`: when an rManager needs a `Tick`; one that comes before does nothing, and none is needed without a
reason."""

from __future__ import annotations

from random import Random

import pytest

from distkv.control import commands as c
from distkv.sim.drawn.cluster import SimCluster
from distkv.sim.machines.node import Node


def test_an_idle_instance_ticks_for_its_heartbeat_alone() -> None:
    cluster = SimCluster([8, 8])
    rm = cluster.nodes["i0"].rm
    now, ticks = cluster.clock.now(), 0
    end = now + 20.0
    while (now := max(now, rm.next_deadline())) < end:
        commands = rm.handle(c.Tick(), now)
        assert [type(command) for command in commands] == [c.TellGManager]
        ticks += 1
    assert ticks == pytest.approx(20.0 / rm.state.settings.heartbeat_s, abs=1)


@pytest.mark.parametrize("seed", range(6))
def test_a_tick_before_its_time_does_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a cluster that borrows, loses an instance and drains: whatever the tick finds to do was announced."""
    early, handle = 0, Node.handle

    def handle_after_a_tick(self: Node, event: c.Event, now: float) -> list[c.Command]:
        nonlocal early
        if now < (deadline := self.rm.next_deadline()):
            early += 1
            commands = self.rm.handle(c.Tick(), now)
            assert not commands, f"announced for {deadline}, done at {now}: {commands}"
        return handle(self, event, now)

    monkeypatch.setattr(Node, "handle", handle_after_a_tick)
    cluster, draw = SimCluster([10, 12, 8], seed=seed), Random(seed)
    for index in range(12):
        prompt = [draw.randrange(1000) for _ in range(draw.randint(1, 60))]
        cluster.submit(f"i{draw.randrange(2)}", f"r{index}", prompt, draw.randint(1, 20))
        cluster.run(draw.random())
    cluster.kill("i2")
    cluster.run(6.0)
    cluster.drain("i1")
    cluster.run(30.0)
    assert early > 100
