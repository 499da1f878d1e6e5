"""DebtBook: leases as the debtor counts them, and how a debt ends."""

from __future__ import annotations

import pytest

from distkv.clock import ManualClock
from distkv.control.loan.borrowing import Purpose
from distkv.control.loan.debts import DebtBook
from distkv.control.request.placement import Debt
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.state import Instance
from distkv.wire.messages.common import Epoch, SpanRef
from distkv.wire.messages.to_rmanager import Granted, Release, Renew, Renewed
from distkv.wire.messages.to_worker import SeqStep
from tests.control.parts import add_sequence, compute, issued, lend, make_instance, place, validate

LEASE_S, MARGIN_S = 4.0, 0.5


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def instance() -> Instance:
    return make_instance()


@pytest.fixture
def debts(instance: Instance) -> DebtBook:
    return DebtBook(instance)


@pytest.fixture
def seq(instance: Instance) -> Sequence:
    seq = add_sequence(instance, num_tokens=22)
    compute(instance, seq)
    return seq


def placed_debt(instance: Instance, seq: Sequence, num_blocks: int = 2, until: float = 103.5, at: int = 0) -> Debt:
    debt = lend(seq, "p", num_blocks, until, at)
    place(instance, seq, debt)
    return debt


def fly(instance: Instance) -> int:
    """A step is in flight; returns its number."""
    for seq in instance.running():
        seq.todo.add(seq.length - 1, seq.length)
    step = instance.batcher.plan(instance.running(), now=0.0)
    assert step is not None
    return step.step_id


def land(instance: Instance, step_id: int) -> None:
    instance.batcher.finished(step_id)
    instance.settle()


def test_a_renewal_counts_from_its_sending(
    instance: Instance, debts: DebtBook, seq: Sequence, clock: ManualClock
) -> None:
    debt = placed_debt(instance, seq)
    assert debts.tick(clock.now()) == []
    (renew,) = issued(instance, Renew)
    assert renew.spans == (debt.span,) and renew.ttl_s == LEASE_S
    clock.advance(0.9)
    assert debts.on_renewed("p", Renewed(renewal=renew.renewal)) == []
    assert debt.valid_until == 100.0 + LEASE_S - MARGIN_S
    assert debts.on_renewed("p", Renewed(renewal=renew.renewal, refused=(debt.span,))) == [], "an answer counts once"


def test_leases_are_renewed_four_times_in_their_time(
    instance: Instance, debts: DebtBook, seq: Sequence, clock: ManualClock
) -> None:
    placed_debt(instance, seq, until=1000.0)
    sent = 0
    for _ in range(80):
        debts.tick(clock.now())
        sent += len(issued(instance, Renew))
        clock.advance(0.1)
    assert sent == 8


def test_a_lease_that_was_not_renewed_runs_out_a_margin_early(
    instance: Instance, debts: DebtBook, seq: Sequence, clock: ManualClock
) -> None:
    debt = placed_debt(instance, seq, until=100.0 + LEASE_S - MARGIN_S)
    assert debts.tick(clock.advance(LEASE_S - MARGIN_S - 0.01)) == []
    assert debts.tick(clock.advance(0.01)) == [(seq, debt)]


def test_a_refused_renewal_is_a_loss_the_others_hold(
    instance: Instance, debts: DebtBook, seq: Sequence, clock: ManualClock
) -> None:
    gone, kept = placed_debt(instance, seq, 2), placed_debt(instance, seq, 2, at=2)
    debts.tick(clock.now())
    (renew,) = issued(instance, Renew)
    assert set(renew.spans) == {gone.span, kept.span}
    assert debts.on_renewed("p", Renewed(renewal=renew.renewal, refused=(gone.span,))) == [(seq, gone)]
    assert kept.valid_until == 103.5 and gone.valid_until == 103.5
    unknown = SpanRef(span_id="else", epoch=Epoch(1, 1))
    debts.tick(clock.advance(1.0))
    (renew,) = issued(instance, Renew)
    assert debts.on_renewed("p", Renewed(renewal=renew.renewal, refused=(unknown,))) == []
    assert kept.valid_until == 104.5


def test_grants_still_being_collected_are_renewed_too(
    instance: Instance, debts: DebtBook, seq: Sequence, clock: ManualClock
) -> None:
    borrow = instance.borrower.start(seq, Purpose.PLACE, 4, clock.now())
    held = Debt(SpanRef(span_id="g", epoch=Epoch(1, 1)), "q", (1, 2), 103.0)
    borrow.grants.append(held)
    debts.tick(clock.now())
    (renew,) = issued(instance, Renew)
    debts.on_renewed("p", Renewed(renewal=renew.renewal))
    assert held.valid_until == 103.0, "only who was asked can answer"
    debts.on_renewed("q", Renewed(renewal=renew.renewal))
    assert held.valid_until == 103.5


def test_a_lost_span_is_exactly_what_is_to_be_computed_again(
    instance: Instance, debts: DebtBook, seq: Sequence
) -> None:
    first, second = placed_debt(instance, seq, 2), placed_debt(instance, seq, 2, at=2)
    assert debts.lose(seq, first) == 2
    assert list(seq.todo) == [(0, 8)]
    assert seq.unsettled and [block.number for block in seq.homeless()] == [0, 1]
    assert all(block.checksum is None and not block.sealed for block in seq.blocks[:2])
    assert [block.placed for block in seq.blocks[2:4]] == [True, True]
    assert seq.debts == [second]
    assert [release.span for release in issued(instance, Release)] == [first.span]
    validate(instance, debts)


def test_what_had_not_left_yet_is_not_lost(instance: Instance, debts: DebtBook, seq: Sequence) -> None:
    debt = lend(seq, "p", 3, 103.5)
    assert debts.lose(seq, debt) == 0
    assert list(seq.todo) == [] and seq.homeless() == []
    assert [block.debt for block in seq.blocks[:3]] == [None, None, None]
    validate(instance, debts)


@pytest.mark.parametrize("lost", ["home", "new"])
def test_losing_one_end_of_a_move_between_creditors(
    instance: Instance, debts: DebtBook, seq: Sequence, lost: str
) -> None:
    home = placed_debt(instance, seq, 2)
    new = lend(seq, "q", 2, 103.5)
    assert seq.blocks[0].home is home and seq.blocks[0].whereabouts() == (home, 0)
    if lost == "home":
        assert debts.lose(seq, home) == 2
        assert list(seq.todo) == [(0, 8)]
        assert seq.blocks[0].debt is new and not seq.blocks[0].placed
    else:
        assert debts.lose(seq, new) == 0
        assert list(seq.todo) == []
        assert seq.blocks[0].whereabouts() == (home, 0) and seq.blocks[0].placed
    validate(instance, debts)


def test_an_abandoned_debt_keeps_what_lies_there(instance: Instance, debts: DebtBook, seq: Sequence) -> None:
    debt = placed_debt(instance, seq, 2)
    debt.slots += (102, 103, 104)
    for block in seq.blocks[2:4]:
        seq.assign(block, debt)
    debts.abandon(seq, debt)
    assert (debt.capacity, debt.blocks, debt.exposed) == (2, seq.blocks[:2], 0)
    assert [block.debt for block in seq.blocks[2:4]] == [None, None]
    assert debt in seq.debts and issued(instance, Release) == []
    validate(instance, debts)


def test_an_empty_debt_is_given_back_when_no_step_names_it(instance: Instance, debts: DebtBook, seq: Sequence) -> None:
    debt = placed_debt(instance, seq, 2)
    step_id = fly(instance)
    for block in list(debt.blocks):
        slot = instance.take_slot()
        assert slot is not None
        seq.settle_here(block, slot)
    debts.release_if_empty(seq, debt)
    assert seq.debts == [] and issued(instance, Release) == []
    land(instance, step_id)
    assert [release.span for release in issued(instance, Release)] == [debt.span]


def test_memory_of_an_ended_request_is_free_when_its_steps_and_readers_are_done(
    instance: Instance, debts: DebtBook, seq: Sequence, clock: ManualClock
) -> None:
    placed, read = placed_debt(instance, seq, 2), lend(seq, "q", 2, 103.5, at=2)
    read.exposed = 2
    being_read = [block.slot for block in seq.blocks[2:4]]
    step_id = fly(instance)
    del instance.sequences[seq.request_id]
    debts.drop(seq, clock.now())
    assert seq.blocks == [] and seq.debts == []
    assert issued(instance, Release) == []
    land(instance, step_id)
    assert {release.span for release in issued(instance, Release)} == {placed.span, read.span}
    assert sorted(debts.closing_slots()) == sorted(being_read)
    assert instance.pool.num_free == instance.pool.num_slots - 2
    validate(instance, debts)
    debts.on_released("p", read.span)
    debts.on_released("q", SpanRef(span_id=read.span.span_id, epoch=Epoch(9, 9)))
    assert sorted(debts.closing_slots()) == sorted(being_read), "only the span's creditor is done with it"
    debts.on_released("q", read.span)
    assert debts.closing_slots() == [] and instance.pool.num_free == instance.pool.num_slots
    debts.on_released("q", read.span)


@pytest.mark.parametrize("how", ["lease", "death"])
def test_a_reader_that_never_says_it_is_done(
    instance: Instance, debts: DebtBook, seq: Sequence, clock: ManualClock, how: str
) -> None:
    lend(seq, "q", 2, 103.5).exposed = 1
    del instance.sequences[seq.request_id]
    debts.drop(seq, clock.now())
    assert len(debts.closing_slots()) == 1
    debts.tick(clock.advance(LEASE_S - 0.01))
    debts.on_peer_lost("p")
    assert len(debts.closing_slots()) == 1
    if how == "lease":
        debts.tick(clock.advance(0.01))
    else:
        debts.on_peer_lost("q")
    assert instance.pool.num_free == instance.pool.num_slots
    validate(instance, debts)


def test_a_grant_that_nobody_waits_for_goes_back_in_its_life(instance: Instance, debts: DebtBook) -> None:
    debts.give_back_unwanted("p", Granted(span_id="x", epoch=Epoch(4, 2), slots=(1,), ttl_s=1.0))
    (release,) = issued(instance, Release)
    assert release.span == SpanRef(span_id="x", epoch=Epoch(4, 2))


def test_steps_name_where_the_blocks_lie(instance: Instance, debts: DebtBook, seq: Sequence) -> None:
    debt = placed_debt(instance, seq, 2)
    seq.todo.add(21, 22)
    step = instance.batcher.plan(instance.running(), now=0.0)
    assert step is not None
    part: SeqStep = step.seqs[0]
    assert [(span.instance_id, span.first_block, span.num_blocks) for span in part.remote] == [("p", 0, 2)]
    assert part.remote[0].span == debt.span
    assert [(run.first_block, run.num_blocks) for run in part.local] == [(2, 4)]
