"""DebtBook: leases as the debtor counts them, and how a debt ends."""

from __future__ import annotations

import pytest

from distkv.clock import ManualClock
from distkv.control.loan.debtor.borrow import Borrow, Purpose
from distkv.control.loan.debtor.debts import DebtBook
from distkv.control.request.block import Block, Debt
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.wire.messages.common import Epoch, SpanRef
from distkv.wire.messages.to_rmanager import Granted, Release, Released, Renew, Renewed
from distkv.wire.messages.to_worker import SeqStep
from tests.control.loan.debts.case import LEASE_S, fly, land, placed_debt
from tests.control.parts import issued, lend, offer, validate


def collecting(state: RManagerState, debts: DebtBook, seq: Sequence) -> tuple[Borrow, Debt]:
    """A borrow that was granted part of what it wants, at 99 s."""
    borrow = state.borrower.start(seq, Purpose.PLACE, 4, 99.0)
    held = Debt(SpanRef(span_id="g", epoch=Epoch(1, 1)), "q", (1, 2), 103.0, 4.0)
    state.borrower.collect(borrow, held)
    debts.add(seq, held, 99.0)
    return borrow, held


def test_grants_still_being_collected_are_renewed_too(
    state: RManagerState, debts: DebtBook, seq: Sequence, clock: ManualClock
) -> None:
    _, held = collecting(state, debts, seq)
    debts.tick(clock.now())
    (renew,) = issued(state, Renew)
    debts.on_renewed("p", Renewed(renewal=renew.renewal))
    assert held.valid_until == 103.0, "only who was asked can answer"
    debts.on_renewed("q", Renewed(renewal=renew.renewal))
    assert held.valid_until == 103.5
    validate(state, debts)


@pytest.mark.parametrize("how", ["lease", "refused"])
def test_a_grant_that_is_gone_while_others_are_collected_is_not_used(
    state: RManagerState, debts: DebtBook, seq: Sequence, clock: ManualClock, how: str
) -> None:
    borrow, held = collecting(state, debts, seq)
    if how == "lease":
        assert debts.take_expired(103.0) == []
    else:
        debts.tick(clock.now())
        (renew,) = issued(state, Renew)
        assert debts.on_renewed("q", Renewed(renewal=renew.renewal, refused=(held.span,))) == []
    assert borrow.grants == [] and [release.span for release in issued(state, Release)] == [held.span]
    validate(state, debts)


def test_a_lost_span_is_exactly_what_is_to_be_computed_again(
    state: RManagerState, debts: DebtBook, seq: Sequence
) -> None:
    first, second = placed_debt(state, debts, seq, 2), placed_debt(state, debts, seq, 2, at=2)
    assert debts.lose(seq, first) == 2
    assert list(seq.uncomputed) == [(0, 8)]
    assert seq.placement.unsettled and [block.number for block in seq.placement.unplaced()] == [0, 1]
    assert all(block.checksum is None and not block.full for block in seq.placement.blocks[:2])
    assert [block.arrived for block in seq.placement.blocks[2:4]] == [True, True]
    assert seq.placement.debts == [second]
    assert [release.span for release in issued(state, Release)] == [first.span]
    validate(state, debts)


def test_what_had_not_left_yet_is_not_lost(state: RManagerState, debts: DebtBook, seq: Sequence) -> None:
    debt = lend(seq, "p", 3, 103.5, debts=debts)
    assert debts.lose(seq, debt) == 0
    assert list(seq.uncomputed) == [] and seq.placement.unplaced() == []
    assert [block.debt for block in seq.placement.blocks[:3]] == [None, None, None]
    validate(state, debts)


@pytest.mark.parametrize("lost", ["old", "new"])
def test_losing_one_end_of_a_move_between_creditors(
    state: RManagerState, debts: DebtBook, seq: Sequence, lost: str
) -> None:
    old = placed_debt(state, debts, seq, 2)
    new = lend(seq, "q", 2, 103.5, debts=debts)
    assert seq.placement.blocks[0].moving_from is old and seq.placement.blocks[0].location() == (old, 0)
    if lost == "old":
        assert debts.lose(seq, old) == 2
        assert list(seq.uncomputed) == [(0, 8)]
        assert seq.placement.blocks[0].debt is new and not seq.placement.blocks[0].arrived
    else:
        assert debts.lose(seq, new) == 0
        assert list(seq.uncomputed) == []
        assert seq.placement.blocks[0].location() == (old, 0) and seq.placement.blocks[0].arrived
    validate(state, debts)


def test_an_abandoned_debt_keeps_what_lies_there(state: RManagerState, debts: DebtBook, seq: Sequence) -> None:
    debt = placed_debt(state, debts, seq, 2)
    debt.slots += (102, 103, 104)
    seq.placement.borrow(debt, seq.placement.blocks[2:4])
    debts.abandon(seq, debt)
    assert (debt.capacity, debt.blocks, debt.num_ready) == (2, seq.placement.blocks[:2], 0)
    assert [block.debt for block in seq.placement.blocks[2:4]] == [None, None]
    assert debt in seq.placement.debts
    assert issued(state, Release) == [Release(span=debt.span, positions=(2, 3, 4))], "its creditor has them back"
    validate(state, debts)


def take_home(state: RManagerState, seq: Sequence, block: Block) -> None:
    slot = state.take_slot()
    assert slot is not None
    seq.placement.take_back(block, slot)


def test_what_was_given_back_is_said_again_until_it_is_answered(
    state: RManagerState, debts: DebtBook, seq: Sequence, clock: ManualClock
) -> None:
    debt = placed_debt(state, debts, seq, 2, until=1000.0)
    debt.slots += (102, 103)
    debts.release_unused(seq, debt)
    step_id = fly(state)
    take_home(state, seq, debt.blocks[1])
    debts.release_positions(seq, debt, [1])
    assert issued(state, Release) == [Release(span=debt.span, positions=(2, 3))]
    debts.tick(clock.now())
    assert issued(state, Release) == [Release(span=debt.span, positions=(2, 3))], "a step in flight names position 1"
    debts.on_released("p", Released(span=debt.span, positions=(3,)))
    debts.on_released("q", Released(span=debt.span, positions=(2,)))
    land(state, step_id)
    assert issued(state, Release) == [Release(span=debt.span, positions=(1,))]
    debts.tick(clock.advance(1.0))
    assert issued(state, Release) == [Release(span=debt.span, positions=(1, 2))]
    debts.on_released("p", Released(span=debt.span, positions=(1, 2, 9)))
    debts.tick(clock.advance(1.0))
    assert issued(state, Release) == [] and debt.given_back == {1, 2, 3}
    validate(state, debts)


def test_the_whole_span_goes_back_once_its_last_position_does(
    state: RManagerState, debts: DebtBook, seq: Sequence
) -> None:
    debt = placed_debt(state, debts, seq, 2)
    step_id = fly(state)
    for block in list(debt.blocks):
        take_home(state, seq, block)
        debts.release_positions(seq, debt, [block.number])
    land(state, step_id)
    assert issued(state, Release) == [Release(span=debt.span)], "the part is in the whole"
    validate(state, debts)


def test_an_empty_debt_is_given_back_when_no_step_names_it(
    state: RManagerState, debts: DebtBook, seq: Sequence
) -> None:
    debt = placed_debt(state, debts, seq, 2)
    step_id = fly(state)
    for block in list(debt.blocks):
        take_home(state, seq, block)
    debts.release_positions(seq, debt, [0, 1])
    assert seq.placement.debts == [] and issued(state, Release) == []
    land(state, step_id)
    assert [release.span for release in issued(state, Release)] == [debt.span]


def test_memory_of_an_ended_request_is_free_when_its_steps_and_readers_are_done(
    state: RManagerState, debts: DebtBook, seq: Sequence, clock: ManualClock
) -> None:
    placed, read = placed_debt(state, debts, seq, 2), lend(seq, "q", 2, 103.5, at=2, debts=debts)
    offer(seq, read)
    being_read = [block.slot for block in seq.placement.blocks[2:4]]
    step_id = fly(state)
    del state.sequences[seq.request_id]
    debts.drop(seq, clock.now())
    assert seq.placement.blocks == [] and seq.placement.debts == []
    assert issued(state, Release) == []
    land(state, step_id)
    assert {release.span for release in issued(state, Release)} == {placed.span, read.span}
    assert sorted(debts.closing_slots()) == sorted(being_read)
    assert state.pool.num_free == state.pool.num_slots - 2
    validate(state, debts)
    debts.on_released("p", Released(span=read.span))
    debts.on_released("q", Released(span=SpanRef(span_id=read.span.span_id, epoch=Epoch(9, 9))))
    assert sorted(debts.closing_slots()) == sorted(being_read), "only the span's creditor is done with it"
    debts.on_released("q", Released(span=read.span))
    assert debts.closing_slots() == [] and state.pool.num_free == state.pool.num_slots
    debts.on_released("q", Released(span=read.span))


@pytest.mark.parametrize("how", ["lease", "death"])
def test_a_reader_that_never_says_it_is_done(
    state: RManagerState, debts: DebtBook, seq: Sequence, clock: ManualClock, how: str
) -> None:
    offer(seq, lend(seq, "q", 2, 103.5, debts=debts), 1)
    del state.sequences[seq.request_id]
    debts.drop(seq, clock.now())
    assert len(debts.closing_slots()) == 1
    debts.tick(clock.advance(LEASE_S - 0.01))
    debts.on_peer_lost("p")
    assert len(debts.closing_slots()) == 1
    if how == "lease":
        debts.tick(clock.advance(0.01))
    else:
        debts.on_peer_lost("q")
    assert state.pool.num_free == state.pool.num_slots
    validate(state, debts)


def test_a_grant_that_nobody_waits_for_goes_back_in_its_life(state: RManagerState, debts: DebtBook) -> None:
    debts.on_granted("p", Granted(span_id="x", epoch=Epoch(4, 2), slots=(1,), ttl_s=1.0), 100.0)
    (release,) = issued(state, Release)
    assert release.span == SpanRef(span_id="x", epoch=Epoch(4, 2))


def test_a_grant_that_comes_twice_is_one(state: RManagerState, debts: DebtBook, seq: Sequence) -> None:
    debt = placed_debt(state, debts, seq)
    again = Granted(span_id=debt.span.span_id, epoch=debt.span.epoch, slots=debt.slots, ttl_s=1.0)
    debts.on_granted("p", again, 100.0)
    assert issued(state, Release) == [] and debts.find(debt.span) == (seq, debt)


def test_steps_name_where_the_blocks_lie(state: RManagerState, debts: DebtBook, seq: Sequence) -> None:
    debt = placed_debt(state, debts, seq, 2)
    seq.uncomputed.add(21, 22)
    step = state.scheduler.plan(state.running(), now=0.0)
    assert step is not None
    part: SeqStep = step.seqs[0]
    assert [(span.instance_id, span.first_block, span.num_blocks) for span in part.remote] == [("p", 0, 2)]
    assert part.remote[0].span == debt.span
    assert [(run.first_block, run.num_blocks) for run in part.local] == [(2, 4)]
