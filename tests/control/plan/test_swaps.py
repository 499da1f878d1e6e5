"""Swapper: one member's part of a run of DGFM."""

from __future__ import annotations

from typing import Any

import pytest

from distkv.clock import ManualClock
from distkv.control.loan.creditor.lending import Demand, Loan
from distkv.control.loan.debtor.debts import DebtBook
from distkv.control.loan.debtor.recall import Cause, Recaller
from distkv.control.plan import swaps
from distkv.control.plan.swaps import LONGEST_FREEZE_S, Swapper
from distkv.control.request.block import Debt
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.wire.messages.common import PlanEpoch
from distkv.wire.messages.from_worker import Pulled
from distkv.wire.messages.to_gmanager import Frozen, Swapped
from distkv.wire.messages.to_rmanager import Freeze, Granted, Release, Swap, Thaw, TryMoveKvcache
from distkv.wire.messages.to_worker import Pull
from tests.control.parts import add_sequence, compute, issued, lend, make_state, place

RUN = PlanEpoch(5, 3)


class Member:
    """An instance that owes p `owed` blocks of its request r, lends `lent` slots to q, and has `free` slots."""

    def __init__(self, owed: int = 6, lent: int = 6, free: int = 3, running: bool = False) -> None:
        self.clock = ManualClock(10.0)
        self.state: RManagerState = make_state(num_blocks=24)
        self.debts = DebtBook(self.state)
        self.recaller = Recaller(self.state, self.debts)
        self.swapper = Swapper(self.state, self.debts, self.recaller)
        self.seq: Sequence = add_sequence(self.state, num_tokens=4 * owed + 2)
        compute(self.state, self.seq)
        self.debt: Debt = lend(self.seq, "p", owed, valid_until=100.0, debts=self.debts)
        place(self.state, self.seq, self.debt)
        self.loan = self.lends("q", lent) if lent else None
        while self.state.pool.num_free > free:
            other = add_sequence(self.state, f"x{self.state.pool.num_free}", 1)
            compute(self.state, other)
            self.state.sequences.wait(other, 0.0)
        if not running:
            self.state.sequences.wait(self.seq, 0.0)
        self.state.commands.clear()

    def lends(self, debtor: str, num_blocks: int) -> Loan:
        wanted = TryMoveKvcache(
            span_id=f"of-{debtor}",
            request_id="s",
            debtor_id=debtor,
            debtor_incarnation=1,
            num_blocks=num_blocks,
            ttl_s=4,
        )
        answer, _ = self.state.loans.try_grant(debtor.encode(), wanted, num_blocks, self.clock.now())
        assert isinstance(answer, Granted)
        return self.state.loans.loans[wanted.span_id]

    def freeze(self, **fields: Any) -> Frozen:
        usual = {"run": RUN, "creditor_id": "p", "debtor_id": "q", "num_blocks": 5, "duration_s": 5.0}
        self.swapper.on_freeze(Freeze(**usual | fields), self.clock.now())
        (frozen,) = issued(self.state, Frozen)
        self.check()
        return frozen

    def swap(self, num_blocks: int = 5) -> None:
        self.swapper.on_swap(Swap(run=RUN, num_blocks=num_blocks), self.clock.now())
        self.check()

    def pull(self) -> Pull:
        """The one pull that was begun since."""
        (pull,) = issued(self.state, Pull)
        return pull

    def pulled(self, pull: Pull, problem: str = "") -> None:
        home = self.recaller.on_pulled(Pulled(pull_id=pull.pull_id, problem=problem), self.clock.now())
        self.swapper.on_pulled(pull.pull_id, home or 0, problem, self.clock.now())
        self.check()

    def returned(self, *positions: int) -> None:
        """q gave these positions of its loan back, and nobody reads them."""
        assert self.loan is not None
        self.state.loans.close(self.loan, positions)
        self.state.loans.revoked(self.loan.span, positions)
        self.swapper.on_returned("q", len(positions), self.clock.now())
        self.check()

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.swapper.advance(self.clock.now())
        self.check()

    def check(self) -> None:
        self.swapper.validate()
        self.state.validate(self.debts.closing_slots() + self.recaller.slots() + self.swapper.slots())
        self.debts.validate()

    def swapped(self) -> list[int]:
        return [message.num_blocks for message in issued(self.state, Swapped)]


def test_blocks_come_home_into_spare_slots_and_then_into_those_that_its_debtor_gives_back() -> None:
    member = Member(free=3)
    member.state.histories.begin(member.seq.request_id, 1)
    assert member.freeze() == Frozen(instance_id="me", run=RUN, num_blocks=5, spare_blocks=3)
    assert member.state.pinned_debtor == "q" and len(member.swapper.slots()) == 3 and member.state.pool.num_free == 0
    member.swap()
    pull = member.pull()
    assert pull.source_slots == member.debt.slots[3:6] and len(pull.slots) == 3, "the last ones"
    member.pulled(pull)
    assert [block.slot for block in member.seq.placement.blocks[3:6]] == list(pull.slots)
    (release,) = issued(member.state, Release)
    assert release.positions == (3, 4, 5)
    member.returned(0, 1, 2)
    assert member.state.pool.num_free == 1, "it needs two more slots, and no more"
    member.pulled(pull := member.pull())
    assert pull.source_slots == member.debt.slots[1:3] and member.swapped() == [5]
    member.returned(3, 4)
    assert member.state.pool.num_free == 3 and member.debt.capacity == 1, "as many as before"
    assert member.state.counters.swapped_blocks == 5 and member.state.counters.dgfm_runs == 1
    history = member.state.histories.find(member.seq.request_id)
    assert history is not None and {one.why for one in history.entries} == {Cause.SWAP.value}
    member.swapper.on_thaw(Thaw(run=RUN))
    assert (
        member.state.pinned_debtor == "" and member.swapped() == [] and member.swapper.next_deadline() == float("inf")
    )


def test_one_without_a_spare_slot_begins_with_what_comes_back() -> None:
    member = Member(free=0)
    assert member.freeze().spare_blocks == 0
    member.swap()
    assert issued(member.state, Pull) == []
    member.returned(2)
    assert len(member.pull().slots) == 1


def test_as_much_as_lies_there_and_so_many_slots_at_most_are_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swaps, "MOST_SPARE_BLOCKS", 4)
    member = Member(owed=9, free=8)
    assert member.freeze(num_blocks=20) == Frozen(instance_id="me", run=RUN, num_blocks=9, spare_blocks=4)
    member.swap(2)
    assert len(member.pull().slots) == 2 and member.swapper.slots() == [], "what it has no use for is free again"


def test_running_requests_keep_a_slot_each() -> None:
    assert Member(free=3, running=True).freeze().spare_blocks == 2


@pytest.mark.parametrize(
    "why",
    [
        "it is draining",
        "another run has not ended here",
        "the run is over",
        "nothing is lent to q",
        "what is lent to q is reclaimed",
        "nothing lies at p that could come home",
    ],
)
def test_why_it_does_not_freeze(why: str) -> None:
    member = Member(lent=0 if why == "nothing is lent to q" else 6)
    pinned = ""
    if why == "it is draining":
        member.state.instance_state = "draining"
    elif why == "another run has not ended here":
        member.freeze(run=PlanEpoch(5, 2))
        pinned = "q"
    elif why == "the run is over":
        member.swapper.on_thaw(Thaw(run=PlanEpoch(5, 4)))
    elif why == "what is lent to q is reclaimed":
        assert member.loan is not None
        member.state.loans.reclaim(member.loan, Demand(2, 12.0))
    elif why == "nothing lies at p that could come home":
        member.debts.lose(member.seq, member.debt)
    member.state.commands.clear()
    frozen = member.freeze()
    assert (frozen.reason, frozen.num_blocks) == (why, 0) and member.state.pinned_debtor == pinned


def test_messages_that_come_twice_late_or_never() -> None:
    member = Member()
    assert member.freeze() == member.freeze(), "answered again"
    member.swapper.on_swap(Swap(run=PlanEpoch(5, 2), num_blocks=5), 10.0)
    assert issued(member.state, Pull) == [], "of another run"
    member.swap()
    member.swap(1)
    member.pull()
    member.swapper.on_thaw(Thaw(run=PlanEpoch(5, 2)))
    assert member.state.pinned_debtor == "q"
    member.swapper.on_thaw(Thaw(run=RUN))
    assert member.freeze().reason == "the run is over"
    assert not member.freeze(run=PlanEpoch(4, 1)).reason, "another gManager counts for itself"


def test_a_freeze_ends_by_itself() -> None:
    member = Member()
    member.freeze(duration_s=1e6)
    assert member.swapper.next_deadline() == 10.0 + LONGEST_FREEZE_S
    member.advance(LONGEST_FREEZE_S - 0.1)
    assert member.state.pinned_debtor == "q"
    member.advance(0.1)
    assert member.state.pinned_debtor == "" and member.state.pool.num_free == 3 and member.swapped() == []


def test_what_comes_home_is_told_when_the_freeze_ends_before_all_is_there() -> None:
    member = Member()
    member.freeze()
    member.swap()
    member.pulled(member.pull())
    member.advance(5.0)
    assert member.swapped() == [3] and member.state.pinned_debtor == ""


def test_a_pull_that_fails_is_the_end_and_one_that_comes_late_harms_nobody() -> None:
    member = Member()
    member.freeze()
    member.swap()
    member.pulled(member.pull(), "the source is gone")
    assert member.swapped() == [0] and member.state.pool.num_free == 3 and member.state.pinned_debtor == "q"
    late = Member()
    late.freeze()
    late.swap()
    pull = late.pull()
    late.advance(5.0)
    late.pulled(pull)
    assert late.state.counters.swapped_blocks == 0 and late.debt.capacity == 3, "it came home after all"


def test_a_request_that_ends_drops_out_and_the_run_uses_what_is_left() -> None:
    member = Member(owed=3, free=6)
    other = add_sequence(member.state, "o", 10)
    compute(member.state, other)
    place(member.state, other, lend(other, "p", 2, valid_until=100.0, debts=member.debts))
    member.state.sequences.wait(other, 0.0)
    member.state.commands.clear()
    frozen = member.freeze()
    assert (frozen.num_blocks, frozen.spare_blocks) == (5, 5)
    member.swap()
    pull = member.pull()
    assert len(pull.slots) == 2, "of the request that has fewest there"
    del member.state.sequences["o"]
    member.debts.drop(other, member.clock.now())
    member.pulled(pull)
    assert len(member.pull().slots) == 3 and member.swapped() == []


def test_slots_that_are_set_aside_are_given_up_for_a_request_that_stands_still() -> None:
    member = Member(free=4, running=True)
    member.freeze()
    while member.state.pool.num_free:
        compute(member.state, add_sequence(member.state, f"y{member.state.pool.num_free}", 1))
    member.state.scheduler.stalled = [member.seq]
    member.advance(0.1)
    assert member.state.pool.num_free == 3 and member.swapper.slots() == []
    member.swap()
    assert issued(member.state, Pull) == [] and member.state.pinned_debtor == "q", (
        "it begins when q gives something back"
    )


def test_pulls_leave_requests_that_run_their_time() -> None:
    member = Member(owed=9, free=8, running=True)
    member.freeze(num_blocks=9, duration_s=20.0)
    member.swap(9)
    pull = member.pull()
    member.clock.advance(0.02)
    member.pulled(pull)
    member.returned(0, 1, 2, 3)
    assert issued(member.state, Pull) == [] and member.swapper.next_deadline() == pytest.approx(10.02 + 0.98)
    member.advance(0.97)
    assert issued(member.state, Pull) == []
    member.advance(0.02)
    assert member.pull()


def test_an_instance_that_drains_leaves_the_run() -> None:
    member = Member()
    member.freeze()
    member.swap()
    member.pull()
    member.state.instance_state = "draining"
    member.advance(0.1)
    assert member.swapped() == [0] and member.state.pinned_debtor == "" and member.swapper.slots() == []
