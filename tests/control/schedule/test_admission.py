"""Memory: admission, growth and preemption of one instance (PROTOCOL, "Admission and growth")."""

from __future__ import annotations

from random import Random

import pytest

from distkv.clock import ManualClock
from distkv.control.blocks import SlotState
from distkv.control.loan.borrowing import Borrow, Purpose
from distkv.control.loan.debts import DebtBook
from distkv.control.request.placement import Debt
from distkv.control.request.sequence import SeqState, Sequence
from distkv.control.rmanager.state import Instance
from distkv.control.schedule.admission import AGED_S, GIVE_UP_RETRIES, LONGEST_RETRY_S, Memory
from distkv.wire.messages.common import Epoch, SpanRef
from distkv.wire.messages.to_gmanager import BorrowQuery
from distkv.wire.messages.to_rmanager import Release
from tests.control.parts import add_sequence, compute, issued, lend, make_instance, place, validate

WAITING, ACQUIRING, RUNNING = SeqState.WAITING, SeqState.ACQUIRING, SeqState.RUNNING


class Remembering:
    """One instance with a pool of `num_blocks`, and what decides about it."""

    def __init__(self, num_blocks: int = 8, peers: tuple[str, ...] = ("p", "q"), **settings: object) -> None:
        self.clock = ManualClock(10.0)
        self.instance: Instance = make_instance(num_blocks, peers, **settings)
        self.debts = DebtBook(self.instance)
        self.memory = Memory(self.instance, self.debts, Random(1))

    def wait(self, name: str, num_blocks: int, arrival: float = 0.0) -> Sequence:
        return add_sequence(self.instance, name, num_blocks * 4, WAITING, arrival=arrival)

    def run(self, name: str, num_blocks: int, arrival: float = 0.0) -> Sequence:
        """A request that runs, its prompt computed."""
        seq = add_sequence(self.instance, name, num_blocks * 4, RUNNING, arrival=arrival)
        compute(self.instance, seq)
        return seq

    def admit(self) -> None:
        self.memory.admit(self.clock.now())
        self.check()

    def make_room(self) -> None:
        self.memory.make_room(self.clock.now())
        self.check()

    def stall(self) -> None:
        """Plan steps until nothing is left to plan, and let each be answered without a token."""
        for seq in self.instance.running():
            seq.todo.add(seq.length, seq.length)
        while (step := self.instance.batcher.plan(self.instance.running(), self.clock.now())) is not None:
            self.instance.batcher.finished(step.step_id)
        self.instance.settle()

    def borrow(self) -> Borrow:
        (borrow,) = self.instance.borrower.active.values()
        return borrow

    def end(self, borrow: Borrow, *grants: tuple[str, int]) -> None:
        """The borrow is over, with these grants."""
        for index, (creditor, count) in enumerate(grants):
            span = SpanRef(span_id=f"{borrow.borrow_id}-{index}", epoch=Epoch(1, 1))
            borrow.grants.append(Debt(span, creditor, tuple(range(count)), self.clock.now() + 3.5))
        del self.instance.borrower.active[borrow.borrow_id]
        self.memory.on_borrowed(borrow, self.clock.now())
        self.check()

    def check(self) -> None:
        validate(self.instance, self.debts)


# --- admission


def test_what_fits_here_starts_here() -> None:
    remembering = Remembering()
    seq = remembering.wait("r", 6)
    remembering.admit()
    assert seq.state is RUNNING and len(seq.spare) == 6
    assert remembering.instance.pool.num_free == 2
    assert issued(remembering.instance, BorrowQuery) == []


def test_a_slot_is_kept_for_each_that_runs() -> None:
    remembering = Remembering(8, peers=())
    remembering.run("a", 2)
    late = remembering.wait("b", 6, arrival=1.0)
    remembering.admit()
    assert late.state is WAITING and late.spare == [] and remembering.instance.pool.num_free == 6
    fits = remembering.wait("c", 5, arrival=2.0)
    remembering.admit()
    assert fits.state is RUNNING


def test_all_or_nothing_with_borrowed_memory() -> None:
    remembering = Remembering(8)
    seq = remembering.wait("r", 20)
    remembering.admit()
    assert seq.state is ACQUIRING and len(seq.spare) == 8
    borrow = remembering.borrow()
    assert (borrow.purpose, borrow.num_blocks) == (Purpose.PLACE, 12)
    remembering.end(borrow, ("p", 7), ("q", 4))
    assert seq.state is WAITING and seq.spare == [] and seq.debts == []
    assert remembering.instance.pool.num_free == 8
    assert len(issued(remembering.instance, Release)) == 2, "what was granted goes back"
    assert seq.retry_at > remembering.clock.now()
    remembering.clock.advance(2 * LONGEST_RETRY_S)
    remembering.admit()
    remembering.end(remembering.borrow(), ("p", 8), ("q", 4))
    assert seq.state is RUNNING and len(seq.spare) == 8
    first, second = seq.debts
    assert [block.number for block in first.blocks + second.blocks] == list(range(12)), "the oldest blocks leave"
    assert (first.capacity, second.capacity) == (8, 4)


def test_one_that_waits_does_not_overtake_an_aged_one() -> None:
    remembering = Remembering(8, peers=())
    remembering.run("running", 2)
    old, young = remembering.wait("old", 7, arrival=1.0), remembering.wait("young", 1, arrival=2.0)
    remembering.admit()
    assert (old.state, young.state) == (WAITING, RUNNING)
    late = remembering.wait("late", 1, arrival=3.0)
    remembering.clock.advance(AGED_S)
    remembering.admit()
    assert late.state is WAITING, "there is memory for it, but it is not its turn"
    remembering.debts.drop(remembering.instance.sequences.pop("running"), remembering.clock.now())
    remembering.debts.drop(remembering.instance.sequences.pop("young"), remembering.clock.now())
    remembering.admit()
    assert (old.state, late.state) == (RUNNING, WAITING)


def test_nor_while_the_aged_one_borrows() -> None:
    remembering = Remembering(8)
    remembering.run("running", 4)
    old = remembering.wait("old", 20, arrival=1.0)
    remembering.admit()
    assert old.state is ACQUIRING
    remembering.clock.advance(AGED_S)
    remembering.end(remembering.borrow())
    remembering.clock.advance(2 * LONGEST_RETRY_S)
    remembering.admit()
    assert old.state is ACQUIRING and old.spare
    young = remembering.wait("young", 1, arrival=2.0)
    remembering.debts.drop(remembering.instance.sequences.pop("running"), remembering.clock.now())
    remembering.admit()
    assert young.state is WAITING
    remembering.end(remembering.borrow(), ("p", 20))
    remembering.admit()
    assert (old.state, young.state) == (RUNNING, RUNNING)


def test_one_request_borrows_at_a_time() -> None:
    remembering = Remembering(4)
    seqs = [remembering.wait(f"r{i}", 9, arrival=float(i)) for i in range(3)]
    remembering.admit()
    assert [seq.state for seq in seqs] == [ACQUIRING, WAITING, WAITING]


def test_a_full_batch_admits_nobody() -> None:
    remembering = Remembering(8, max_num_seqs=1)
    remembering.run("a", 1)
    waiting = remembering.wait("b", 1, arrival=1.0)
    remembering.admit()
    assert waiting.state is WAITING


def test_failures_back_off_up_to_a_limit() -> None:
    remembering = Remembering(4)
    seq = remembering.wait("r", 9)
    waits = []
    for _ in range(8):
        remembering.admit()
        remembering.end(remembering.borrow())
        waits.append(seq.retry_at - remembering.clock.now())
        remembering.admit()
        assert seq.state is WAITING, "not before its time"
        remembering.clock.advance(waits[-1] + 0.001)
    assert waits[0] < 0.2 and max(waits) <= 1.5 * LONGEST_RETRY_S
    assert waits[4] > waits[0]


def test_one_that_lost_memory_needs_only_what_it_lost() -> None:
    remembering = Remembering(8)
    seq = remembering.run("r", 7)
    gone = lend(seq, "p", 3)
    place(remembering.instance, seq, gone)
    remembering.memory.check_places(seq)
    assert seq.state is RUNNING
    remembering.debts.lose(seq, gone)
    remembering.memory.check_places(seq)
    assert seq.state is WAITING and remembering.memory.homeless_blocks(seq) == 3
    remembering.admit()
    assert seq.state is RUNNING and len(seq.spare) == 3
    assert list(seq.todo) == [(0, 12)]


def test_a_loss_without_slots_waits_for_them_and_borrows() -> None:
    remembering = Remembering(8)
    seq = remembering.run("r", 8)
    gone = lend(seq, "p", 6)
    place(remembering.instance, seq, gone)
    remembering.instance.trim(seq)
    remembering.run("other", 5, arrival=1.0)
    remembering.debts.lose(seq, gone)
    remembering.memory.check_places(seq)
    assert seq.state is WAITING and remembering.memory.homeless_blocks(seq) == 6
    remembering.admit()
    assert seq.state is ACQUIRING
    assert remembering.borrow().num_blocks == 7, "one of its two full local blocks leaves for a slot to compute in"
    remembering.end(remembering.borrow(), ("q", 7))
    assert seq.state is RUNNING and [block.number for block in seq.debts[0].blocks] == [6, 0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("holds", ["slots", "debts"])
def test_two_that_hold_what_the_other_lacks_do_not_wait_for_ever(holds: str) -> None:
    remembering = Remembering(8)
    seq = remembering.run("r", 6)
    if holds == "debts":
        place(remembering.instance, seq, lend(seq, "q", 4))
    gone = lend(seq, "p", 2, at=4)
    place(remembering.instance, seq, gone)
    remembering.instance.trim(seq)
    others = remembering.run("other", remembering.instance.pool.num_free, arrival=1.0)
    remembering.debts.lose(seq, gone)
    remembering.memory.check_places(seq)
    assert others.state is RUNNING and seq.state is WAITING
    for _ in range(GIVE_UP_RETRIES):
        assert seq.blocks and (seq.debts or seq.num_local_slots)
        seq.state = ACQUIRING
        borrow = remembering.instance.borrower.start(seq, Purpose.PLACE, 3, remembering.clock.now())
        remembering.end(borrow)
    assert seq.debts == [] and seq.local_slots() == [] and list(seq.todo) == [(0, 24)]


def broken(remembering: Remembering, name: str, arrival: float) -> Sequence:
    """A request that lost what it had borrowed, waits, and holds all slots that are free."""
    count = remembering.instance.pool.num_free
    seq = remembering.run(name, count, arrival)
    gone = lend(seq, "p", 2)
    place(remembering.instance, seq, gone)
    slots = remembering.instance.pool.allocate(2, SlotState.LOCAL) or []
    other = add_sequence(remembering.instance, f"{name}'s neighbour", 8, RUNNING, arrival=0.5)
    for block, slot in zip(other.blocks, slots, strict=True):
        other.put(block, slot)
    remembering.debts.lose(seq, gone)
    remembering.memory.check_places(seq)
    assert seq.state is WAITING and seq.holds_kv
    return seq


def test_what_holds_memory_is_resumed_before_an_older_request_begins() -> None:
    remembering = Remembering(8)
    old = remembering.wait("old", 20, arrival=1.0)
    holder = broken(remembering, "holder", arrival=2.0)
    remembering.admit()
    assert (old.state, holder.state) == (WAITING, ACQUIRING)


def test_what_holds_memory_and_cannot_go_on_makes_way_for_an_aged_older_request() -> None:
    """Each would wait for the other for ever."""
    remembering = Remembering(8, peers=())
    old = remembering.wait("old", 4, arrival=1.0)
    holder = broken(remembering, "holder", arrival=2.0)
    remembering.admit()
    assert (old.state, holder.state) == (WAITING, WAITING) and holder.holds_kv
    remembering.clock.advance(AGED_S)
    remembering.admit()
    assert holder.state is WAITING and holder.blocks == [] and list(holder.todo) == [(0, 32)]
    remembering.admit()
    assert old.state is RUNNING
    assert remembering.instance.counters.preemptions == 1


def test_a_younger_request_makes_no_older_one_give_up() -> None:
    remembering = Remembering(8, peers=())
    holder = broken(remembering, "holder", arrival=1.0)
    young = remembering.wait("young", 4, arrival=2.0)
    remembering.admit()
    remembering.clock.advance(AGED_S)
    remembering.admit()
    assert holder.holds_kv and young.state is WAITING


# --- making room


def test_sealed_blocks_of_the_fullest_leave_before_anybody_is_preempted() -> None:
    remembering = Remembering(8)
    remembering.run("small", 2)
    full = remembering.run("full", 6, arrival=1.0)
    remembering.make_room()
    borrow = remembering.borrow()
    assert (borrow.seq, borrow.purpose, borrow.num_blocks) == (full, Purpose.RELIEVE, 4)
    remembering.make_room()
    assert len(remembering.instance.borrower.active) == 1, "one at a time"
    remembering.end(borrow, ("p", 3))
    assert [block.number for block in full.debts[0].blocks] == [0, 1, 2]


def test_with_room_nothing_leaves() -> None:
    remembering = Remembering(12)
    remembering.run("a", 2)
    remembering.make_room()
    assert remembering.instance.borrower.active == {}


def test_when_nobody_lends_the_youngest_is_preempted_and_all_of_its_memory_is_free() -> None:
    remembering = Remembering(8)
    old = remembering.run("old", 4)
    young = remembering.run("young", 4, arrival=1.0)
    place(remembering.instance, young, lend(young, "p", 2))
    remembering.instance.trim(young)
    filler = remembering.run("filler", 2, arrival=0.5)
    for seq in (old, young, filler):
        seq.tokens.append(1)
        seq.todo.add(seq.length - 1, seq.length)
        seq.cover(seq.length)
    remembering.stall()
    assert set(remembering.instance.batcher.stalled) == {old, young, filler}
    remembering.make_room()
    remembering.end(remembering.borrow())
    assert young.state is WAITING and (old.state, filler.state) == (RUNNING, RUNNING)
    assert young.blocks == [] and list(young.todo) == [(0, 17)] and young.attempt == 1
    assert remembering.instance.pool.num_free == 2
    assert [release.span.span_id for release in issued(remembering.instance, Release)] == ["young-p-0"]
    assert remembering.instance.counters.preemptions == 1
    assert young.retry_at > remembering.clock.now()


def test_nobody_is_preempted_when_a_slot_came_free_meanwhile() -> None:
    remembering = Remembering(4, peers=())
    seq = remembering.run("a", 3)
    other = remembering.run("b", 1, arrival=1.0)
    seq.tokens.append(1)
    seq.todo.add(seq.length - 1, seq.length)
    seq.cover(seq.length)
    remembering.stall()
    assert remembering.instance.batcher.stalled == [seq]
    del remembering.instance.sequences["b"]
    remembering.debts.drop(other, remembering.clock.now())
    remembering.make_room()
    assert seq.state is RUNNING and remembering.instance.counters.preemptions == 0


def test_alone_and_without_peers_the_youngest_is_preempted_at_once() -> None:
    remembering = Remembering(4, peers=())
    old, young = remembering.run("old", 2), remembering.run("young", 2, arrival=1.0)
    old.tokens.append(1)
    old.todo.add(old.length - 1, old.length)
    old.cover(old.length)
    remembering.stall()
    remembering.make_room()
    assert (old.state, young.state) == (RUNNING, WAITING)
    assert remembering.instance.pool.num_free == 2


def test_a_borrow_of_a_request_that_ended_goes_back() -> None:
    for purpose in Purpose:
        remembering = Remembering(8)
        seq = remembering.run("r", 4)
        borrow = remembering.instance.borrower.start(seq, purpose, 2, remembering.clock.now())
        del remembering.instance.sequences["r"]
        remembering.debts.drop(seq, remembering.clock.now())
        remembering.end(borrow, ("p", 2))
        assert len(issued(remembering.instance, Release)) == 1 and seq.debts == []
        assert remembering.instance.pool.num_free == 8


def test_another_home_takes_what_lies_at_the_one_that_wants_it_back() -> None:
    remembering = Remembering(8)
    seq = remembering.run("r", 6)
    old = lend(seq, "p", 2)
    place(remembering.instance, seq, old)
    place(remembering.instance, seq, lend(seq, "q", 2, at=2))
    borrow = remembering.instance.borrower.start(seq, Purpose.REHOME, 2, remembering.clock.now(), exclude=["p"])
    remembering.end(borrow, ("s", 1), ("t", 2))
    assert [(debt.creditor_id, [block.number for block in debt.blocks]) for debt in seq.debts[2:]] == [
        ("s", [0]),
        ("t", [1]),
    ]
    assert seq.blocks[0].home is old


def test_who_holds_spare_slots_keeps_only_what_it_will_use() -> None:
    remembering = Remembering(8)
    seq = remembering.run("r", 2)
    seq.spare = remembering.instance.pool.allocate(3, SlotState.LOCAL) or []
    remembering.instance.trim(seq)
    assert seq.spare == [] and remembering.instance.pool.num_free == 6
    remembering.check()
