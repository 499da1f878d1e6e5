"""What a gManager makes of heartbeats that are lost, late or told twice: what its instance says."""

from __future__ import annotations

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from distkv.clock import ManualClock
from distkv.config import MembershipSettings
from distkv.control.cluster.gmanager import GManager
from distkv.control.commands import Answer, GManagerRequested
from distkv.control.rmanager.reports.heartbeats import Heartbeats
from distkv.wire.messages.to_gmanager import Heartbeat, Join
from distkv.wire.messages.to_rmanager import HeartbeatAck, TryMoveKvcache
from tests.control.parts import add_sequence, compute, lend, make_member, make_state, place
from tests.examples import examples


class Telling(RuleBasedStateMachine):
    """One instance whose requests come, move and go. Its heartbeats and their acknowledgements are lost, repeated and
    overtaken, and the gManager restarts. Once all that is sent arrives, the ledger is the truth."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(100.0)
        self.state = make_state(num_blocks=64)
        self.heartbeats = Heartbeats(self.state)
        self.to_gm: deque[Heartbeat | Join] = deque()
        self.to_rm: deque[HeartbeatAck] = deque()
        self.gm = GManager(MembershipSettings(dead_after_s=1e6))
        self.join()

    def join(self) -> None:
        self.to_gm.append(Join(member=make_member("me", incarnation=7, total_blocks=64), compat="c"))

    @rule(name=st.sampled_from("abc"), blocks=st.integers(1, 4))
    def request(self, name: str, blocks: int) -> None:
        if name not in self.state.sequences:
            compute(self.state, add_sequence(self.state, name, blocks * 4))

    @rule(name=st.sampled_from("abc"), blocks=st.integers(1, 4))
    def some_of_it_leaves(self, name: str, blocks: int) -> None:
        seq = self.state.sequences.get(name)
        movable = [] if seq is None else seq.placement.movable()[:blocks]
        if seq is not None and movable and movable[-1].number - movable[0].number < blocks:
            place(self.state, seq, lend(seq, "p", len(movable), at=movable[0].number))

    @rule(name=st.sampled_from("abc"))
    def ended(self, name: str) -> None:
        seq = self.state.sequences.pop(name, None)
        if seq is not None:
            self.state.deferred.add(None, seq.placement.local_slots())

    @rule(span=st.sampled_from("stu"), name=st.sampled_from("xy"), blocks=st.integers(1, 3))
    def lent(self, span: str, name: str, blocks: int) -> None:
        ask = TryMoveKvcache(
            span_id=span, request_id=name, debtor_id=name * 2, debtor_incarnation=1, num_blocks=blocks, ttl_s=4.0
        )
        self.state.loans.try_grant(b"d", ask, self.state.lendable(), self.clock.now())

    @rule(span=st.sampled_from("stu"))
    def given_back(self, span: str) -> None:
        if span in self.state.loans.loans:
            self.state.loans.revoked(self.state.loans.loans[span].span)

    @rule()
    def beat(self) -> None:
        self.to_gm.append(self.heartbeats.build(0))

    @precondition(lambda self: self.to_gm)
    @rule(data=st.data(), how=st.sampled_from(["deliver", "deliver", "lose", "repeat", "overtake"]))
    def network(self, data: st.DataObject, how: str) -> None:
        if how == "overtake":
            self.to_gm.rotate(data.draw(st.integers(0, len(self.to_gm) - 1)))
        message = self.to_gm.popleft()
        if how == "repeat":
            self.to_gm.append(message)
        if how != "lose":
            self.hear(message)

    def hear(self, message: Heartbeat | Join) -> None:
        for command in self.gm.handle(GManagerRequested("me", b"me", message), self.clock.advance(0.01)):
            if isinstance(command, Answer) and isinstance(command.body, HeartbeatAck):
                self.to_rm.append(command.body)

    @precondition(lambda self: self.to_rm)
    @rule(how=st.sampled_from(["deliver", "deliver", "lose", "repeat", "overtake"]))
    def answers(self, how: str) -> None:
        if how == "overtake":
            self.to_rm.reverse()
        ack = self.to_rm.popleft()
        if how == "repeat":
            self.to_rm.append(ack)
        if how != "lose":
            self.on_ack(ack)

    def on_ack(self, ack: HeartbeatAck) -> None:
        self.heartbeats.on_ack(ack)
        if ack.want_join:
            self.join()

    @rule()
    def gmanager_restarts(self) -> None:
        self.gm = GManager(MembershipSettings(dead_after_s=1e6))

    @rule()
    def settles(self) -> None:
        """Some rounds without loss: one may be refused because of who sends it, one for what it builds on."""
        for _ in range(3):
            self.beat()
            while self.to_gm:
                self.hear(self.to_gm.popleft())
            while self.to_rm:
                self.on_ack(self.to_rm.popleft())
        self.agree()

    def agree(self) -> None:
        truth: dict[str, int] = {}
        for name, seq in self.state.sequences.items():
            truth[name] = len(seq.placement.local_slots())
        for loan in self.state.loans.loans.values():
            truth[loan.request_id] = truth.get(loan.request_id, 0) + len(loan.slots)
        placed = self.gm.ledger.placement()
        assert placed == {name: {"me": blocks} for name, blocks in truth.items() if blocks}
        assert sum(self.gm.ledger.debts().values()) == self.state.loans.num_blocks
        entry = self.gm.ledger.entries["me"]
        assert entry.heartbeat is not None and entry.reported_free_blocks == self.state.pool.num_free

    def teardown(self) -> None:
        self.settles()
        self.state.validate()
        self.heartbeats.validate()


TestTelling = Telling.TestCase
TestTelling.settings = settings(max_examples=examples(80), stateful_step_count=30, deadline=None)
