"""Admission: admission, growth and preemption of one instance (docs/design.md, "Admission")."""

from __future__ import annotations

import pytest

from distkv.control.blocks import SlotState
from distkv.control.loan.borrow import Purpose
from distkv.control.request.sequence import SeqState, Sequence
from distkv.control.schedule.admission import FORESEEN_S, GIVE_UP_RETRIES
from distkv.control.schedule.holdings import LONGEST_RETRY_S
from distkv.control.schedule.waiting import AGED_S
from distkv.wire.messages.profile import LinkProfile
from distkv.wire.messages.to_gmanager import BorrowQuery
from distkv.wire.messages.to_rmanager import Release, TryMoveKvcache
from tests.control.parts import add_sequence, issued, lend, place
from tests.control.performance.profiles import make_profile
from tests.control.schedule.admitting import ACQUIRING, RUNNING, WAITING, Admitting, slow_to_attend_elsewhere


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


def test_what_the_oldest_lack_is_told_also_of_those_that_hold_some() -> None:
    admitting = Admitting(8)
    admitting.run("a", 2)
    borrows = admitting.wait("b", 9, arrival=1.0)
    admitting.admit()
    assert borrows.state is ACQUIRING
    for number, size in enumerate((5, 3, 4)):
        admitting.wait(f"w{number}", size, arrival=2.0 + number)
    lacks = 9 - len(borrows.placement.unassigned_slots)
    assert 0 < lacks < 9 and admitting.admission.waiting_sizes(16) == (lacks, 5, 3, 4)
    assert admitting.admission.waiting_sizes(2) == (lacks, 5)
    assert admitting.admission.waiting_tokens(16) == (0, 0, 0, 0), "their clients would not send them elsewhere"
    for seq in (borrows, *admitting.state.sequences.queue.waiting):
        seq.request.can_move = True
    assert admitting.admission.waiting_tokens(3) == (4 * (9 + 2), 4 * (5 + 2), 4 * (3 + 2)), "with what they grow by"
    borrows.request.began = 1.0
    assert admitting.admission.waiting_tokens(2) == (0, 28)


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
    assert waits[4] > waits[0]


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
    admitting.wait("young", 1, arrival=6.0)
    before = admitting.admission.lacking(admitting.clock.now())
    admitting.admit()
    assert old.state is ACQUIRING and old.placement.unassigned_slots
    assert admitting.admission.lacking(admitting.clock.now()) == before
    assert before.seq is old and before.blocks > 0


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
    admitting = Admitting(8)
    seq = admitting.run("r", 6)
    old = lend(seq, "p", 2, debts=admitting.debts)
    place(admitting.state, seq, old)
    place(admitting.state, seq, lend(seq, "q", 2, at=2, debts=admitting.debts))
    borrow = admitting.state.borrower.start(seq, Purpose.RECLAIM, 2, admitting.clock.now(), exclude=["p"])
    admitting.end(borrow, ("s", 1), ("t", 2))
    assert [(debt.creditor_id, [block.number for block in debt.blocks]) for debt in seq.placement.debts[2:]] == [
        ("s", [0]),
        ("t", [1]),
    ]
    assert seq.placement.blocks[0].moving_from is old


def test_who_holds_spare_slots_keeps_only_what_it_will_use() -> None:
    admitting = Admitting(8)
    seq = admitting.run("r", 2)
    seq.placement.unassigned_slots = admitting.state.pool.allocate(3, SlotState.LOCAL) or []
    admitting.state.deferred.trim(seq)
    assert seq.placement.unassigned_slots == [] and admitting.state.pool.num_free == 6
    admitting.check()


def test_who_fits_here_waits_for_memory_at_home_where_borrowing_does_not_pay() -> None:
    admitting = Admitting(8)
    slow_to_attend_elsewhere(admitting)
    running = admitting.run("running", 5)
    seq = admitting.wait("r", 4, arrival=5.0)
    admitting.admit()
    assert seq.state is WAITING and not seq.retries and issued(admitting.state, BorrowQuery) == []
    small = admitting.wait("small", 1, arrival=6.0)
    admitting.state.growing.outputs.ended(1)
    admitting.admit()
    assert small.state is RUNNING, "what fits goes by"
    for done in (running, small):
        del admitting.state.sequences[done.request_id]
        admitting.debts.drop(done, admitting.clock.now())
    admitting.admit()
    assert seq.state is RUNNING


def test_who_is_larger_than_its_instance_borrows_whatever_it_costs_and_does_not_wait_for_who_does_not() -> None:
    admitting = Admitting(8)
    slow_to_attend_elsewhere(admitting)
    admitting.run("running", 5)
    fits, larger = admitting.wait("fits", 4, arrival=5.0), admitting.wait("larger", 12, arrival=6.0)
    admitting.admit()
    assert (fits.state, larger.state) == (WAITING, ACQUIRING)
    assert not admitting.borrow().is_avoidable


def test_who_has_lent_to_requests_that_could_wait_does_not_borrow_for_such_but_reclaims() -> None:
    admitting = Admitting(16)
    wanted = TryMoveKvcache(
        span_id="s",
        request_id="other",
        debtor_id="p",
        debtor_incarnation=1,
        num_blocks=8,
        ttl_s=4.0,
        is_avoidable=True,
    )
    admitting.state.loans.try_grant(b"p", wanted, 8, admitting.clock.now())
    admitting.run("running", 2)
    seq = admitting.wait("r", 5, arrival=5.0)
    admitting.admit()
    assert seq.state is WAITING and issued(admitting.state, BorrowQuery) == []
    lack = admitting.admission.lacking(admitting.clock.now())
    assert lack.seq is seq and lack.blocks > 0 and lack.is_to_reclaim


def test_while_nothing_is_known_of_what_steps_cost_who_fits_here_borrows() -> None:
    admitting = Admitting(8)
    admitting.run("running", 5)
    seq = admitting.wait("r", 4, arrival=5.0)
    admitting.admit()
    assert seq.state is ACQUIRING and admitting.borrow().is_avoidable


def test_who_fits_here_and_could_begin_elsewhere_waits_for_memory_in_one_place() -> None:
    """Each borrow had all steps of its batch wait, and took memory from those who came to its creditor next."""
    admitting = Admitting(8)
    admitting.run("running", 5)
    fits = add_sequence(admitting.state, "fits", 16, WAITING, arrival=5.0, can_move=True)
    larger = add_sequence(admitting.state, "larger", 48, WAITING, arrival=6.0, can_move=True)
    admitting.admit()
    assert (fits.state, larger.state) == (WAITING, ACQUIRING)


@pytest.mark.parametrize(("round_trip_s", "state"), [(0.00001, ACQUIRING), (0.1, WAITING)])
def test_before_anybody_waited_a_profile_says_what_waiting_costs(round_trip_s: float, state: SeqState) -> None:
    link = LinkProfile(round_trip_s=round_trip_s, bytes_per_s=1e9, read_bytes_per_s=1e9, busy_round_trip_s=round_trip_s)
    admitting = Admitting(8, profile=make_profile(links={"host": link}))
    admitting.state.worth.observe(
        1, has_chunks=False, is_remote=False, compute_s=0.01, attend_wait_s=0.0, now=admitting.clock.now()
    )
    admitting.run("running", 5)
    seq = admitting.wait("r", 4, arrival=5.0)
    admitting.admit()
    assert seq.state is state
