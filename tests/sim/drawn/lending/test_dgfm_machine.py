"""Hypothesis drives a cluster in which debts go round: requests, plans, runs of DGFM, and messages that are lost, come
twice, come late, or come from another gManager. Every invariant is checked after every event, see `SimCluster`."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from distkv import events
from distkv.config import AdviceSettings
from distkv.control import commands as c
from distkv.sim.drawn.cluster import GMANAGER, SimCluster
from distkv.sim.machines.channel import Channel
from distkv.wire.messages.common import PlanEpoch
from distkv.wire.messages.to_gmanager import Frozen, Swapped
from distkv.wire.messages.to_rmanager import Freeze, MoveKvcache, Swap, Thaw
from tests.sim.parts import check, prompt

NAMES = ["i0", "i1", "i2"]
names, blocks = st.sampled_from(NAMES), st.integers(1, 12)
OF_RUNS = (Freeze, Swap, Thaw, Frozen, Swapped)


class Runs(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 1000))
    def begin(self, seed: int) -> None:
        self.cluster = SimCluster([100, 110, 120], seed, advice=AdviceSettings(dgfm_min_blocks=1))
        self.wanted: dict[str, tuple[list[int], int]] = {}
        self.plans = 0
        self.said: list[tuple[Channel, Any]] = []
        send = self.cluster.network.send

        def remember(channel: Channel, message: Any) -> None:
            if isinstance(getattr(message, "message", None), OF_RUNS):
                self.said.append((channel, message))
            send(channel, message)

        self.cluster.network.send = remember  # type: ignore[method-assign]
        self.go_round(6)

    @rule(name=names, length=st.integers(20, 100), out=st.integers(20, 120))
    def submit(self, name: str, length: int, out: int) -> None:
        request_id = f"{len(self.wanted):03}-{name}"
        self.wanted[request_id] = prompt(length, len(self.wanted)), out
        self.cluster.submit(name, request_id, *self.wanted[request_id])
        self.cluster.run(0.1)

    @rule(num_blocks=blocks)
    def go_round(self, num_blocks: int) -> None:
        """A request comes to each instance, and blocks of it go to the next one: a run begins."""
        for name in NAMES:
            self.submit(name, 80, 250)
        for request_id, destination in zip(sorted(self.wanted)[-3:], ["i1", "i2", "i0"], strict=True):
            self._move(request_id, destination, num_blocks)
        self.cluster.run(2.0, lambda: any(isinstance(event, events.DgfmBegun) for _, event in self.cluster.events))

    @precondition(lambda self: self.wanted and self.cluster.gm)
    @rule(data=st.data(), destination=names, num_blocks=blocks)
    def move(self, data: st.DataObject, destination: str, num_blocks: int) -> None:
        self._move(data.draw(st.sampled_from(sorted(self.wanted))), destination, num_blocks)

    def _move(self, request_id: str, destination: str, num_blocks: int) -> None:
        """As planned by a gManager."""
        assert self.cluster.gm is not None
        entry = self.cluster.gm.ledger.entries.get(request_id[4:])
        seq = 0 if entry is None or entry.heartbeat is None else entry.heartbeat.seq
        self.plans += 1
        plan = MoveKvcache(
            request_id=request_id,
            num_blocks=num_blocks,
            destination=destination,
            epoch=PlanEpoch(1, self.plans),
            debtor_incarnation=1,
            seq=seq,
        )
        self.cluster.handle(request_id[4:], c.FromGManager(plan))
        self.cluster.run(0.1)

    @rule(seconds=st.floats(0.05, 1.5))
    def let_time_pass(self, seconds: float) -> None:
        self.cluster.run(seconds)

    @rule(loss=st.sampled_from([0.0, 0.05, 0.3]), duplication=st.sampled_from([0.0, 0.1]))
    def change_the_network(self, loss: float, duplication: float) -> None:
        self.cluster.network.loss, self.cluster.network.duplication = loss, duplication

    @precondition(lambda self: self.said)
    @rule(data=st.data())
    def say_again(self, data: st.DataObject) -> None:
        """Something of any run so far comes once more."""
        self.cluster.network.send(*data.draw(st.sampled_from(self.said)))

    @rule(to=names, creditor=names, debtor=names, num_blocks=blocks, number=st.integers(1, 3), kind=st.integers(0, 2))
    def forge(self, to: str, creditor: str, debtor: str, num_blocks: int, number: int, kind: int) -> None:
        """Another gManager plans by a ledger of its own."""
        run = PlanEpoch(7, number)
        message = [
            Freeze(run=run, creditor_id=creditor, debtor_id=debtor, num_blocks=num_blocks, duration_s=3.0),
            Swap(run=run, num_blocks=num_blocks),
            Thaw(run=run),
        ][kind]
        self.cluster.handle(to, c.FromGManager(message))

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.cluster.cancel(data.draw(st.sampled_from(sorted(self.wanted))))

    @rule(one=names, other=names)
    def cut(self, one: str, other: str) -> None:
        if one != other:
            self.cluster.cut(one, other)

    @rule()
    def restart_the_gmanager(self) -> None:
        self.cluster.kill_gmanager(GMANAGER)
        self.cluster.run(0.3)
        self.cluster.restart_gmanager(GMANAGER)

    @rule(name=names, failing=st.booleans())
    def let_pulls_fail(self, name: str, failing: bool) -> None:
        self.cluster.fail_pulls(name, failing)

    def teardown(self) -> None:
        """Everything is mended: right tokens, all runs over, all memory back."""
        if not hasattr(self, "cluster"):
            return
        self.cluster.network.loss = self.cluster.network.duplication = 0.0
        for name in NAMES:
            self.cluster.fail_pulls(name, False)
        self.cluster.finish()
        for request_id, (tokens, out) in self.wanted.items():
            if self.cluster.outcomes[request_id].finish == "length":
                check(self.cluster, request_id, tokens, out)
        self.cluster.settle(12)
        assert any(isinstance(event, events.DgfmBegun) for _, event in self.cluster.events)
        assert not any(node.rm.state.pinned_debtor for node in self.cluster.nodes.values())


TestRuns = Runs.TestCase
TestRuns.settings = settings(
    max_examples=5, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)
