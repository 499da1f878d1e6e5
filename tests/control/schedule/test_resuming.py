"""Admission of requests that hold memory and cannot go on: who is resumed first, and who gives up what it has."""

from __future__ import annotations

import pytest

from distkv.control.blocks import SlotState
from distkv.control.loan.debtor.borrow import Purpose
from distkv.control.request.sequence import Sequence
from distkv.control.schedule.admission.admission import GIVE_UP_RETRIES
from distkv.control.schedule.admission.waiting import AGED_S
from tests.control.parts import add_sequence, lend, place
from tests.control.schedule.admitting import ACQUIRING, RUNNING, WAITING, Admitting


def test_one_that_lost_memory_needs_only_what_it_lost() -> None:
    admitting = Admitting(8)
    seq = admitting.run("r", 7)
    gone = lend(seq, "p", 3, debts=admitting.debts)
    place(admitting.state, seq, gone)
    admitting.holdings.check_places(seq)
    assert seq.state is RUNNING
    admitting.debts.lose(seq, gone)
    admitting.holdings.check_places(seq)
    assert seq.state is WAITING and admitting.holdings.unplaced_blocks(seq) == 3
    admitting.admit()
    assert seq.state is RUNNING and len(seq.placement.unassigned_slots) == 3
    assert list(seq.uncomputed) == [(0, 12)]


def test_a_loss_without_slots_waits_for_them_and_borrows() -> None:
    admitting = Admitting(8)
    seq = admitting.run("r", 8)
    gone = lend(seq, "p", 6, debts=admitting.debts)
    place(admitting.state, seq, gone)
    admitting.state.deferred.trim(seq)
    admitting.run("other", 5, arrival=1.0)
    admitting.debts.lose(seq, gone)
    admitting.holdings.check_places(seq)
    assert seq.state is WAITING and admitting.holdings.unplaced_blocks(seq) == 6
    admitting.admit()
    assert seq.state is ACQUIRING
    assert admitting.borrow().num_blocks == 7, "one of its two full local blocks leaves for a slot to compute in"
    admitting.end(admitting.borrow(), ("q", 7))
    assert seq.state is RUNNING and [block.number for block in seq.placement.debts[0].blocks] == [6, 0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("holds", ["slots", "debts"])
def test_two_that_hold_what_the_other_lacks_do_not_wait_for_ever(holds: str) -> None:
    admitting = Admitting(8)
    seq = admitting.run("r", 6)
    if holds == "debts":
        place(admitting.state, seq, lend(seq, "q", 4, debts=admitting.debts))
    gone = lend(seq, "p", 2, at=4, debts=admitting.debts)
    place(admitting.state, seq, gone)
    admitting.state.deferred.trim(seq)
    others = admitting.run("other", admitting.state.pool.num_free, arrival=1.0)
    admitting.debts.lose(seq, gone)
    admitting.holdings.check_places(seq)
    assert others.state is RUNNING and seq.state is WAITING
    for _ in range(GIVE_UP_RETRIES):
        assert seq.placement.blocks and (seq.placement.debts or seq.placement.num_local_slots)
        admitting.state.sequences.acquire(seq)
        borrow = admitting.state.borrower.start(seq, Purpose.PLACE, 3, admitting.clock.now())
        admitting.end(borrow)
    assert seq.placement.debts == [] and seq.placement.local_slots() == [] and list(seq.uncomputed) == [(0, 24)]


def broken(admitting: Admitting, name: str, arrival: float) -> Sequence:
    """A request that lost what it had borrowed, waits, and holds all slots that are free."""
    count = admitting.state.pool.num_free
    seq = admitting.run(name, count, arrival)
    gone = lend(seq, "p", 2, debts=admitting.debts)
    place(admitting.state, seq, gone)
    slots = admitting.state.pool.allocate(2, SlotState.LOCAL) or []
    other = add_sequence(admitting.state, f"{name}'s neighbour", 8, RUNNING, arrival=0.5)
    for block, slot in zip(other.placement.blocks, slots, strict=True):
        other.placement.put(block, slot)
    admitting.debts.lose(seq, gone)
    admitting.holdings.check_places(seq)
    assert seq.state is WAITING and seq.placement.holds_kv
    return seq


def test_what_holds_memory_is_resumed_before_an_older_request_begins() -> None:
    admitting = Admitting(8)
    old = admitting.wait("old", 20, arrival=1.0)
    holder = broken(admitting, "holder", arrival=2.0)
    admitting.admit()
    assert (old.state, holder.state) == (WAITING, ACQUIRING)


def test_what_holds_memory_and_cannot_go_on_makes_way_for_an_aged_older_request() -> None:
    """Each would wait for the other for ever."""
    admitting = Admitting(8, peers=())
    old = admitting.wait("old", 4, arrival=1.0)
    holder = broken(admitting, "holder", arrival=2.0)
    admitting.admit()
    assert (old.state, holder.state) == (WAITING, WAITING) and holder.placement.holds_kv
    admitting.clock.advance(AGED_S)
    admitting.admit()
    assert holder.state is WAITING and holder.placement.blocks == [] and list(holder.uncomputed) == [(0, 32)]
    admitting.admit()
    assert old.state is RUNNING
    assert admitting.state.counters.preemptions == 1


def test_a_younger_request_makes_no_older_one_give_up() -> None:
    admitting = Admitting(8, peers=())
    holder = broken(admitting, "holder", arrival=1.0)
    young = admitting.wait("young", 4, arrival=2.0)
    admitting.admit()
    admitting.clock.advance(AGED_S)
    admitting.admit()
    assert holder.placement.holds_kv and young.state is WAITING
