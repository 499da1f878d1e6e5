"""Admission: admission, growth and preemption of one instance (docs/design.md, "Admission")."""

from __future__ import annotations

import pytest

from distkv.control.blocks import SlotState
from distkv.control.loan.debtor.borrow import Purpose
from distkv.control.request.sequence import Sequence
from distkv.control.schedule.admission.admission import MOST_LOOKED_AT
from distkv.control.schedule.admission.demand import FORESEEN_S
from distkv.control.schedule.admission.waiting import AGED_S
from distkv.control.schedule.holdings import FIRST_RETRY_S, LONGEST_RETRY_S
from distkv.wire.messages.to_gmanager import BorrowQuery
from distkv.wire.messages.to_rmanager import Candidate, Creditors, Refused, Release
from tests.control.parts import add_sequence, issued, lend, place
from tests.control.schedule.admitting import ACQUIRING, RUNNING, WAITING, Admitting


def test_what_fits_here_starts_here() -> None:
    admitting = Admitting()
    seq = admitting.wait("r", 6)
    admitting.admit()
    assert seq.state is RUNNING and len(seq.placement.unassigned_slots) == 6
    assert admitting.state.pool.num_free == 2
    assert issued(admitting.state, BorrowQuery) == []


def test_room_is_kept_for_what_runs_to_grow() -> None:
    """Each is expected to get 8 tokens, 2 rBlocks, besides its prompt; two need 3 of these 4 at once."""
    admitting = Admitting(8, peers=())
    admitting.run("a", 2)
    late = admitting.wait("b", 4, arrival=1.0)
    admitting.admit()
    assert late.state is WAITING and late.placement.unassigned_slots == [] and admitting.state.pool.num_free == 6
    fits = admitting.wait("c", 2, arrival=0.5)
    admitting.admit()
    assert fits.state is RUNNING and late.state is WAITING


def test_who_fits_with_its_output_goes_by_those_whose_prompts_alone_fit() -> None:
    """Of 20 rBlocks 2 are in use, and 2 kept for growth; one more for each that joins."""
    admitting = Admitting(20, peers=())
    admitting.run("a", 2)
    first, second = admitting.wait("b", 16, arrival=1.0), admitting.wait("c", 16, arrival=2.0)
    small = admitting.wait("d", 15, arrival=3.0)
    admitting.admit()
    assert [seq.state for seq in (first, second, small)] == [WAITING, WAITING, RUNNING]


def test_of_those_whose_prompts_fit_a_few_are_looked_at() -> None:
    admitting = Admitting(20, peers=())
    admitting.run("a", 2)
    for number in range(MOST_LOOKED_AT):
        admitting.wait(f"b{number}", 16, arrival=1.0 + 0.1 * number)
    small = admitting.wait("d", 15, arrival=3.0)
    admitting.admit()
    assert small.state is WAITING


def test_what_the_oldest_lack_is_told_also_of_those_that_hold_some() -> None:
    admitting = Admitting(8)
    admitting.run("a", 2)
    borrows = admitting.wait("b", 9, arrival=1.0)
    admitting.admit()
    assert borrows.state is ACQUIRING
    assert admitting.demand.waiting_blocks() == sum(
        admitting.holdings.unplaced_blocks(seq)
        for seq in admitting.state.sequences.values()
        if seq.state is not RUNNING
    )
    for number, size in enumerate((5, 3, 4)):
        admitting.wait(f"w{number}", size, arrival=2.0 + number)
    lacks = 9 - len(borrows.placement.unassigned_slots)
    assert 0 < lacks < 9 and admitting.demand.waiting_sizes(16) == (lacks, 5, 3, 4)
    assert admitting.demand.waiting_sizes(2) == (lacks, 5)
    assert admitting.demand.waiting_tokens(16) == (0, 0, 0, 0), "their clients would not send them elsewhere"
    for seq in (borrows, *admitting.state.sequences.queue.waiting):
        seq.request.can_move = True
    assert admitting.demand.waiting_tokens(3) == (4 * (9 + 2), 4 * (5 + 2), 4 * (3 + 2)), "with what they grow by"
    borrows.request.began = 1.0
    assert admitting.demand.waiting_tokens(2) == (0, 28)


def test_nobody_waits_for_room_to_grow_forever() -> None:
    admitting = Admitting(8, peers=())
    admitting.run("a", 2)
    late = admitting.wait("b", 4, arrival=5.0)
    admitting.admit()
    assert late.state is WAITING
    admitting.clock.advance(FORESEEN_S)
    admitting.admit()
    assert late.state is RUNNING


def test_memory_to_grow_into_is_asked_for_and_given_back() -> None:
    admitting = Admitting(8)
    admitting.run("a", 2)
    seq = add_sequence(admitting.state, "r", 16, WAITING, max_tokens=16, arrival=5.0)
    admitting.admit()
    borrow = admitting.borrow()
    assert (seq.state, borrow.num_blocks) == (ACQUIRING, 3), "4 for the prompt, 3 to grow beside the other, 4 here"
    admitting.end(borrow, ("p", 1))
    assert seq.state is WAITING, "no room to grow"
    admitting.clock.advance(2.0)
    admitting.admit()
    admitting.state.commands.clear()
    admitting.end(admitting.borrow(), ("p", 3))
    assert seq.state is RUNNING and [debt.capacity for debt in seq.placement.debts] == [3]
    admitting.check()


def test_what_is_borrowed_to_grow_into_is_kept_for_that() -> None:
    """It went back, and another request that would grow as much was told that there is room."""
    admitting = Admitting(4)
    seq = add_sequence(admitting.state, "r", 12, WAITING, max_tokens=40, arrival=5.0)
    admitting.admit()
    assert admitting.borrow().num_blocks == 9, "3 for the prompt, 10 to grow, 4 here"
    admitting.end(admitting.borrow(), ("p", 4), ("q", 5))
    assert seq.state is RUNNING
    assert [(len(debt.blocks), debt.num_spare) for debt in seq.placement.debts] == [(2, 2), (0, 5)]
    assert admitting.state.growing.blocks() == 10 - 7, "slots are kept here for the others"


def test_all_or_nothing_with_borrowed_memory() -> None:
    admitting = Admitting(8)
    seq = admitting.wait("r", 20)
    admitting.admit()
    assert seq.state is ACQUIRING and len(seq.placement.unassigned_slots) == 8
    borrow = admitting.borrow()
    assert (borrow.purpose, borrow.num_blocks) == (Purpose.PLACE, 12)
    admitting.end(borrow, ("p", 7), ("q", 4))
    assert seq.state is WAITING and seq.placement.unassigned_slots == [] and seq.placement.debts == []
    assert admitting.state.pool.num_free == 8
    assert len(issued(admitting.state, Release)) == 2, "what was granted goes back"
    assert seq.retry_at > admitting.clock.now()
    admitting.clock.advance(2 * LONGEST_RETRY_S)
    admitting.admit()
    admitting.end(admitting.borrow(), ("p", 8), ("q", 4))
    assert seq.state is RUNNING and len(seq.placement.unassigned_slots) == 8
    first, second = seq.placement.debts
    assert [block.number for block in first.blocks + second.blocks] == list(range(12)), "the oldest blocks leave"
    assert (first.capacity, second.capacity) == (8, 4)


def in_vain(admitting: Admitting, name: str = "big") -> Sequence:
    """One that needs 20 of 8 has asked often, in vain, while others had 4."""
    admitting.run("running", 4, max_tokens=1)
    big = admitting.wait(name, 20)
    for _ in range(4):
        admitting.admit()
        admitting.end(admitting.borrow(), ("p", 1))
        assert big.state is WAITING
        admitting.clock.advance(big.retry_at - admitting.clock.now())
    admitting.admit()
    admitting.end(admitting.borrow())
    assert big.retry_at - admitting.clock.now() >= LONGEST_RETRY_S / 2
    return big


SOON_S = 1.5 * FIRST_RETRY_S


def kept_at_q(admitting: Admitting, seq: Sequence) -> None:
    """q refuses another borrow for it, which is withdrawn."""
    now, borrower = admitting.clock.now(), admitting.state.borrower
    borrow = borrower.start(seq, Purpose.PLACE, 9, now)
    borrower.on_creditors(Creditors(borrow_id=borrow.borrow_id, candidates=(Candidate("q", 9),)), now)
    borrower.on_refused("q", Refused(span_id=borrow.span_id, reason="full", free_blocks=0), now)
    borrower.end(borrow)
    assert borrower.take_finished() is borrow and borrower.may_keep("q", seq)


def test_who_waits_for_several_tries_soon_when_a_creditor_has_memory_for_it() -> None:
    admitting = Admitting(8)
    big = in_vain(admitting)
    retry_at = big.retry_at
    admitting.admission.on_vacant("p", "big", admitting.clock.now())
    assert big.retry_at == retry_at, "it was not asked, so that it keeps nothing"
    kept_at_q(admitting, big)
    admitting.admission.on_vacant("q", "big", admitting.clock.now())
    admitting.admit()
    assert big.state is WAITING and big.retry_at <= admitting.clock.now() + SOON_S, "more may come free in a moment"
    assert big.retries, "others were asked in vain"
    admitting.clock.advance(SOON_S)
    admitting.admit()
    assert big.state is ACQUIRING
    kept_at_q(admitting, big)
    admitting.admission.on_vacant("q", "big", admitting.clock.now())
    admitting.end(admitting.borrow())
    assert big.retry_at <= admitting.clock.now() + 2 * SOON_S, "the borrow had begun before"


def test_who_waits_for_several_tries_soon_when_there_is_more_memory_here() -> None:
    """Of 8 it had seen 4, so that it lacked 4; each creditor, and this pool, is to have a share of that."""
    admitting = Admitting(8)
    big = in_vain(admitting)
    admitting.admit()
    retry_at = big.retry_at
    assert retry_at > admitting.clock.now() + SOON_S
    admitting.debts.drop(admitting.state.sequences.pop("running"), admitting.clock.now())
    admitting.admit()
    assert admitting.clock.now() < big.retry_at <= admitting.clock.now() + SOON_S
    soon = big.retry_at
    admitting.admit()
    assert big.retry_at == soon < retry_at, "once for what has come free"


@pytest.mark.parametrize("what", ["nobody", "running"])
def test_of_one_that_does_not_wait_it_means_nothing_that_memory_is_free(what: str) -> None:
    admitting = Admitting(8)
    running = admitting.run("running", 4)
    admitting.admission.on_vacant("q", what, admitting.clock.now())
    admitting.admit()
    assert running.state is RUNNING and not issued(admitting.state, BorrowQuery)


def test_one_that_waits_does_not_overtake_an_aged_one() -> None:
    admitting = Admitting(8, peers=())
    admitting.run("running", 2)
    old, young = admitting.wait("old", 7, arrival=1.0), admitting.wait("young", 1, arrival=2.0)
    admitting.admit()
    assert (old.state, young.state) == (WAITING, RUNNING)
    late = admitting.wait("late", 2, arrival=3.0)
    admitting.clock.advance(AGED_S)
    admitting.admit()
    assert late.state is WAITING, "there is memory for it, but it is not its turn"
    admitting.debts.drop(admitting.state.sequences.pop("running"), admitting.clock.now())
    admitting.debts.drop(admitting.state.sequences.pop("young"), admitting.clock.now())
    admitting.admit()
    assert (old.state, late.state) == (RUNNING, WAITING)


def test_small_ones_go_by_an_aged_one_that_borrows_until_they_have_had_as_much() -> None:
    admitting = Admitting(8)
    admitting.run("running", 4)
    old = admitting.wait("old", 20, arrival=1.0)
    admitting.admit()
    assert old.state is ACQUIRING
    admitting.clock.advance(AGED_S)
    admitting.end(admitting.borrow())
    admitting.clock.advance(2 * LONGEST_RETRY_S)
    admitting.admit()
    assert old.state is ACQUIRING and old.placement.unassigned_slots
    young = admitting.wait("young", 1, arrival=2.0)
    admitting.debts.drop(admitting.state.sequences.pop("running"), admitting.clock.now())
    admitting.admit()
    assert young.state is RUNNING, "it fits"
    admitting.end(admitting.borrow(), ("p", 20))
    admitting.admit()
    assert old.state is RUNNING


def test_one_request_borrows_at_a_time() -> None:
    admitting = Admitting(4)
    seqs = [admitting.wait(f"r{i}", 9, arrival=float(i)) for i in range(3)]
    admitting.admit()
    assert [seq.state for seq in seqs] == [ACQUIRING, WAITING, WAITING]


def test_a_full_batch_admits_nobody() -> None:
    admitting = Admitting(8, max_num_seqs=1)
    admitting.run("a", 1)
    waiting = admitting.wait("b", 1, arrival=1.0)
    admitting.admit()
    assert waiting.state is WAITING


def test_failures_back_off_up_to_a_limit() -> None:
    admitting = Admitting(4)
    seq = admitting.wait("r", 9)
    waits = []
    for _ in range(8):
        admitting.admit()
        admitting.end(admitting.borrow())
        waits.append(seq.retry_at - admitting.clock.now())
        admitting.admit()
        assert seq.state is WAITING, "not before its time"
        admitting.clock.advance(waits[-1] + 0.001)
    assert waits[0] < 0.2 and max(waits) <= 1.5 * LONGEST_RETRY_S
    assert waits[4] > 4 * waits[0], "whatever the jitter"


def test_the_oldest_does_not_wait_for_its_next_try_when_it_fits_here() -> None:
    admitting = Admitting(8)
    running = admitting.run("running", 5)
    old, young = admitting.wait("old", 4, arrival=5.0), admitting.wait("young", 3, arrival=6.0)
    for seq in (old, young):
        admitting.admit()
        assert seq.state is ACQUIRING
        admitting.end(admitting.borrow())
    assert min(old.retry_at, young.retry_at) > admitting.clock.now()
    del admitting.state.sequences["running"]
    admitting.debts.drop(running, admitting.clock.now())
    admitting.admit()
    assert (old.state, young.state) == (RUNNING, WAITING)
    admitting.state.sequences.queue.validate()


def test_a_request_that_borrows_still_lacks_what_it_lacked() -> None:
    """Else what is reclaimed for it would be wanted no more, whenever it tries to borrow."""
    admitting = Admitting(8)
    admitting.run("running", 5)
    old = admitting.wait("old", 4, arrival=5.0)
    admitting.wait("young", 4, arrival=6.0)
    before = admitting.admission.lacking(admitting.clock.now())
    admitting.admit()
    assert old.state is ACQUIRING and old.placement.unassigned_slots
    assert admitting.admission.lacking(admitting.clock.now()) == before
    assert before.seq is old and before.blocks > 0


def test_a_borrow_of_a_request_that_ended_goes_back() -> None:
    for purpose in Purpose:
        admitting = Admitting(8)
        seq = admitting.run("r", 4)
        borrow = admitting.state.borrower.start(seq, purpose, 2, admitting.clock.now())
        del admitting.state.sequences["r"]
        admitting.debts.drop(seq, admitting.clock.now())
        admitting.end(borrow, ("p", 2))
        assert len(issued(admitting.state, Release)) == 1 and seq.placement.debts == []
        assert admitting.state.pool.num_free == 8


def test_another_home_takes_what_lies_at_the_one_that_wants_it_back() -> None:
    """Of the span that it wants back: another one of the same creditor stays where it is."""
    admitting = Admitting(8)
    seq = admitting.run("r", 6)
    place(admitting.state, seq, lend(seq, "p", 1, debts=admitting.debts))
    old = lend(seq, "p", 2, at=1, debts=admitting.debts)
    place(admitting.state, seq, old)
    place(admitting.state, seq, lend(seq, "q", 2, at=3, debts=admitting.debts))
    borrow = admitting.state.borrower.start(seq, Purpose.RECLAIM, 2, admitting.clock.now(), leaves=old)
    assert borrow.exclude == {"p"}
    admitting.end(borrow, ("s", 1), ("t", 2))
    assert [(debt.creditor_id, [block.number for block in debt.blocks]) for debt in seq.placement.debts[3:]] == [
        ("s", [1]),
        ("t", [2]),
    ]
    assert seq.placement.blocks[1].moving_from is old


def test_who_holds_spare_slots_keeps_only_what_it_will_use() -> None:
    admitting = Admitting(8)
    seq = admitting.run("r", 2)
    seq.placement.add_slots(admitting.state.pool.allocate(3, SlotState.LOCAL) or [])
    admitting.state.deferred.trim(seq)
    assert seq.placement.unassigned_slots == [] and admitting.state.pool.num_free == 6
    admitting.check()
