"""DebtBook: leases as the debtor counts them, and how a debt ends."""

from __future__ import annotations

from typing import Any

import pytest

from distkv.clock import ManualClock
from distkv.control.commands import TellPeer
from distkv.control.loan.debtor import debts as debt_book
from distkv.control.loan.debtor.borrow import Borrow, Purpose
from distkv.control.loan.debtor.debts import DebtBook, Renewal
from distkv.control.request.block import Block, Debt
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.wire.messages.common import Epoch, SpanRef
from distkv.wire.messages.to_rmanager import Granted, Release, Released, Renew, Renewed
from distkv.wire.messages.to_worker import SeqStep
from tests.control.parts import add_sequence, compute, issued, lend, make_state, offer, place, validate

LEASE_S, MARGIN_S = 4.0, 0.5


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def state() -> RManagerState:
    return make_state()


@pytest.fixture
def debts(state: RManagerState) -> DebtBook:
    return DebtBook(state)


@pytest.fixture
def seq(state: RManagerState) -> Sequence:
    seq = add_sequence(state, num_tokens=22)
    compute(state, seq)
    return seq


def placed_debt(
    state: RManagerState, debts: DebtBook, seq: Sequence, num_blocks: int = 2, until: float = 103.5, at: int = 0
) -> Debt:
    debt = lend(seq, "p", num_blocks, until, at, debts)
    place(state, seq, debt)
    return debt


def fly(state: RManagerState) -> int:
    """A step is in flight; returns its number."""
    for seq in state.running():
        seq.uncomputed.add(seq.length - 1, seq.length)
    step = state.scheduler.plan(state.running(), now=0.0)
    assert step is not None
    return step.step_id


def land(state: RManagerState, step_id: int) -> None:
    state.scheduler.finished(step_id)
    state.deferred.settle()


def test_a_renewal_counts_from_its_sending(
    state: RManagerState, debts: DebtBook, seq: Sequence, clock: ManualClock
) -> None:
    debt = placed_debt(state, debts, seq)
    debts.tick(clock.now())
    (renew,) = issued(state, Renew)
    assert renew.spans == (debt.span,) and renew.ttl_s == LEASE_S
    clock.advance(0.9)
    assert debts.on_renewed("p", Renewed(renewal=renew.renewal)) == []
    assert debt.valid_until == 100.0 + LEASE_S - MARGIN_S
    assert debts.on_renewed("p", Renewed(renewal=renew.renewal, refused=(debt.span,))) == [], "an answer counts once"


def test_leases_are_renewed_four_times_in_their_time(
    state: RManagerState, debts: DebtBook, seq: Sequence, clock: ManualClock
) -> None:
    placed_debt(state, debts, seq, until=1000.0)
    sent = 0
    for _ in range(80):
        debts.tick(clock.now())
        sent += len(issued(state, Renew))
        clock.advance(0.1)
    assert sent == 8


def test_a_creditor_that_lends_for_less_is_asked_more_often_and_trusted_for_less(
    state: RManagerState, debts: DebtBook, seq: Sequence, clock: ManualClock
) -> None:
    debt = placed_debt(state, debts, seq, until=1000.0)
    sent = 0
    for _ in range(32):
        debts.tick(clock.now())
        for renew in issued(state, Renew):
            sent += 1
            debts.on_renewed("p", Renewed(renewal=renew.renewal, ttl_s=LEASE_S / 2))
            assert debt.valid_until == clock.now() + LEASE_S / 2 - MARGIN_S
            assert debts.next_deadline() == clock.now() + LEASE_S / 8
        clock.advance(0.125)
    assert sent == 8


def test_more_than_one_message_may_have_goes_in_several(
    state: RManagerState, debts: DebtBook, seq: Sequence, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debt_book, "MAX_ITEMS", 2)
    held = [placed_debt(state, debts, seq, num_blocks=1, at=block) for block in range(3)]
    debts.tick(clock.now())
    renewals = issued(state, Renew)
    assert [renew.spans for renew in renewals] == [(held[0].span, held[1].span), (held[2].span,)]
    clock.advance(0.9)
    for renew in renewals:
        assert debts.on_renewed("p", Renewed(renewal=renew.renewal)) == []
    assert {debt.valid_until for debt in held} == {100.0 + LEASE_S - MARGIN_S}
    large = lend(seq, "p", 5, 103.5, 3, debts)
    debts.abandon(seq, large, 3)
    state.deferred.settle()
    assert [release.positions for release in issued(state, Release)] == [(2, 3), (4,)]


def test_each_creditor_is_asked_in_its_own_time(
    state: RManagerState, debts: DebtBook, seq: Sequence, clock: ManualClock
) -> None:
    """One that lends for less does not have all others asked as often."""
    ttl_s = {"p": LEASE_S, "q": LEASE_S / 10}
    lend(seq, "p", 2, 1000.0, debts=debts)
    lend(seq, "q", 2, 1000.0, at=2, debts=debts)
    sent = {"p": 0, "q": 0}
    for _ in range(400):
        assert debts.next_deadline() <= clock.now() + LEASE_S / 4
        debts.tick(clock.now())
        commands = [c for c in state.commands if isinstance(c, TellPeer)]
        state.commands.clear()
        for command in commands:
            assert isinstance(command.body, Renew) and len(command.body.spans) == 1
            sent[command.instance_id] += 1
            lasts = ttl_s[command.instance_id]
            debts.on_renewed(command.instance_id, Renewed(renewal=command.body.renewal, ttl_s=lasts))
        clock.advance(0.01)
    assert sent["p"] == 4 and 36 <= sent["q"] <= 40


def test_a_renewal_costs_the_same_however_many_creditors_there_are() -> None:
    """For each of them all renewals that were not answered yet were looked at."""
    seen = []
    for num_creditors in (10, 100):
        state = make_state()
        debts, seq = DebtBook(state), add_sequence(state, num_tokens=4 * num_creditors)
        for number in range(num_creditors):
            lend(seq, f"p{number}", 1, 1e9, number, debts)
        debts._renewals = looked_at = CountingRenewals()
        debts.tick(100.0)
        debts.tick(100.0 + LEASE_S / 2)
        assert len(looked_at) == 2 * num_creditors
        debts.tick(100.0 + LEASE_S)
        assert len(looked_at) == 2 * num_creditors, "those of a lease ago are forgotten"
        seen.append(looked_at.seen / num_creditors)
    assert seen[1] <= seen[0] <= 2.0, seen


class CountingRenewals(dict[int, Renewal]):
    """How many of them were looked at."""

    seen = 0

    def items(self) -> Any:
        for item in super().items():
            self.seen += 1
            yield item


@pytest.mark.parametrize("ttl_s", [0.2, 1.0, 1.9])
def test_the_margin_of_a_short_lease_is_a_quarter_of_it(
    state: RManagerState, debts: DebtBook, seq: Sequence, clock: ManualClock, ttl_s: float
) -> None:
    """A margin longer than the lease would lose every span at once."""
    debt = placed_debt(state, debts, seq, until=1000.0)
    debts.tick(clock.now())
    (renew,) = issued(state, Renew)
    debts.on_renewed("p", Renewed(renewal=renew.renewal, ttl_s=ttl_s))
    assert debt.valid_until == pytest.approx(100.0 + 0.75 * ttl_s)
    assert debts.take_expired(clock.advance(0.74 * ttl_s)) == []
    assert debts.take_expired(clock.advance(0.02 * ttl_s)) == [(seq, debt)]


def test_a_lease_that_was_not_renewed_runs_out_a_margin_early(
    state: RManagerState, debts: DebtBook, seq: Sequence, clock: ManualClock
) -> None:
    debt = placed_debt(state, debts, seq, until=100.0 + LEASE_S - MARGIN_S)
    assert debts.take_expired(clock.advance(LEASE_S - MARGIN_S - 0.01)) == []
    assert debts.take_expired(clock.advance(0.01)) == [(seq, debt)]


def test_a_refused_renewal_is_a_loss_the_others_hold(
    state: RManagerState, debts: DebtBook, seq: Sequence, clock: ManualClock
) -> None:
    gone, kept = placed_debt(state, debts, seq, 2), placed_debt(state, debts, seq, 2, at=2)
    debts.tick(clock.now())
    (renew,) = issued(state, Renew)
    assert set(renew.spans) == {gone.span, kept.span}
    assert debts.on_renewed("p", Renewed(renewal=renew.renewal, refused=(gone.span,))) == [(seq, gone)]
    assert kept.valid_until == 103.5 and gone.valid_until == 103.5
    unknown = SpanRef(span_id="else", epoch=Epoch(1, 1))
    debts.tick(clock.advance(1.0))
    (renew,) = issued(state, Renew)
    assert debts.on_renewed("p", Renewed(renewal=renew.renewal, refused=(unknown,))) == []
    assert kept.valid_until == 104.5


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
