"""Making room: full blocks move out, or the one gives way that costs least to do again, but never the oldest."""

from __future__ import annotations

import pytest

from distkv.checksums import pack
from distkv.control.loan.debtor.borrow import Purpose
from distkv.control.loan.debtor.moves import Mover
from distkv.control.request.sequence import Sequence
from distkv.control.schedule.making_room import LEAST_MOVE_BLOCKS, REDO_S, Victim, cheapest
from distkv.wire.messages.from_worker import Checksummed
from distkv.wire.messages.profile import LinkProfile
from distkv.wire.messages.to_rmanager import BlocksReady, Release
from distkv.wire.messages.to_worker import Checksum
from tests.control.parts import issued, lend, make_member, place
from tests.control.performance.profiles import make_profile
from tests.control.schedule.admitting import RUNNING, WAITING, Admitting, slow_to_attend_elsewhere


def test_sealed_blocks_of_the_fullest_leave_before_anybody_is_preempted() -> None:
    admitting = Admitting(8)
    admitting.run("small", 2)
    full = admitting.run("full", 6, arrival=1.0)
    admitting.make_room()
    borrow = admitting.borrow()
    assert (borrow.seq, borrow.purpose, borrow.num_blocks) == (full, Purpose.RELIEVE, 6), "all, for they are few"
    admitting.make_room()
    assert len(admitting.state.borrower.active) == 1, "one at a time"
    admitting.end(borrow, ("p", 3))
    assert [block.number for block in full.placement.debts[0].blocks] == [0, 1, 2]


@pytest.mark.parametrize(("max_tokens", "borrows"), [(60, True), (4, False)])
def test_where_all_others_drain_only_what_no_pool_holds_goes_on_to_its_creditor(max_tokens: int, borrows: bool) -> None:
    admitting = Admitting(8)
    full = admitting.run("full", 6, max_tokens=max_tokens)
    debt = lend(full, "p", 1, debts=admitting.debts)
    place(admitting.state, full, debt)
    admitting.state.deferred.trim(full)
    admitting.run("filler", 3, arrival=1.0)
    for name in ("p", "q"):
        admitting.state.members[name] = make_member(name, state="draining")
    assert not admitting.state.has_creditors and admitting.state.pool.num_free == 0
    admitting.make_room()
    assert [borrow.seq for borrow in admitting.state.borrower.active.values()] == [full] * borrows


def test_where_all_others_drain_one_that_its_creditor_lends_to_is_chosen_before_a_fuller_one() -> None:
    """Nobody lends to the fuller one, and a running request was preempted though memory was to be had."""
    admitting = Admitting(12)
    pooled = admitting.run("pooled", 5, max_tokens=60)
    debt = lend(pooled, "p", 1, debts=admitting.debts)
    place(admitting.state, pooled, debt)
    admitting.state.deferred.trim(pooled)
    fuller = admitting.run("fuller", 8, arrival=1.0)
    for name in ("p", "q"):
        admitting.state.members[name] = make_member(name, state="draining")
    assert admitting.state.pool.num_free == 0
    assert fuller.placement.counts.movable > pooled.placement.counts.movable > 0
    admitting.make_room()
    assert [borrow.seq for borrow in admitting.state.borrower.active.values()] == [pooled]


def test_blocks_that_a_decode_makes_room_by_leave_together() -> None:
    """One Checksum and one BlocksReady for all of them: single ones would cost as much each."""
    admitting = Admitting(16)
    full = admitting.run("full", 15)
    admitting.run("small", 1, arrival=1.0)
    admitting.make_room()
    admitting.end(admitting.borrow(), ("p", LEAST_MOVE_BLOCKS))
    mover = Mover(admitting.state, admitting.debts)
    mover.advance(full, admitting.clock.now())
    (checksum,) = issued(admitting.state, Checksum)
    assert len(checksum.slots) == LEAST_MOVE_BLOCKS
    mover.on_checksummed(Checksummed(checksum_id=checksum.checksum_id, checksums=pack((1,) * LEAST_MOVE_BLOCKS)))
    mover.advance(full, admitting.clock.now())
    (ready,) = issued(admitting.state, BlocksReady)
    assert len(ready.blocks) == LEAST_MOVE_BLOCKS
    admitting.make_room()
    assert admitting.state.borrower.active == {}, "no others are sent after them while they are on their way"


def test_full_blocks_leave_for_what_is_kept_before_anything_is_borrowed() -> None:
    admitting = Admitting(8)
    admitting.run("small", 2)
    full = admitting.run("full", 6, arrival=1.0)
    first = lend(full, "p", 1, debts=admitting.debts, spare=2)
    second = lend(full, "q", 0, debts=admitting.debts, spare=5)
    place(admitting.state, full, first)
    admitting.state.deferred.trim(full)
    admitting.run("filler", 1, arrival=2.0)
    admitting.make_room()
    assert admitting.state.borrower.active == {}
    assert [[block.number for block in debt.blocks] for debt in (first, second)] == [[0, 1, 2], [3, 4, 5]]
    assert (first.num_spare, second.num_spare) == (0, 2) and "full" in admitting.state.sequences.touched


def test_who_has_to_wait_again_keeps_no_positions_to_spare() -> None:
    admitting = Admitting(8)
    seq = admitting.run("r", 7)
    kept = lend(seq, "q", 1, debts=admitting.debts, spare=3)
    empty = lend(seq, "s", 0, debts=admitting.debts, spare=1)
    gone = lend(seq, "p", 3, at=1, debts=admitting.debts)
    for debt in (kept, gone):
        place(admitting.state, seq, debt)
    admitting.debts.lose(seq, gone)
    admitting.state.commands.clear()
    admitting.holdings.check_places(seq)
    assert seq.state is WAITING and seq.placement.debts == [kept] and kept.num_spare == 0
    released = [(release.span, release.positions) for release in issued(admitting.state, Release)]
    assert released == [(kept.span, (1, 2, 3)), (empty.span, ())]
    admitting.check()


def test_nothing_leaves_where_waits_for_partials_cost_more_than_standing_still() -> None:
    """Another one ends, and its slots come free."""
    admitting = Admitting(8)
    slow_to_attend_elsewhere(admitting)
    admitting.run("small", 2)
    full = admitting.run("full", 6, arrival=1.0)
    admitting.make_room()
    assert admitting.state.borrower.active == {}
    full.request.tokens.extend([1] * 40)
    assert not admitting.state.fits_at_home(full)
    admitting.make_room()
    assert admitting.borrow().seq is full, "what needs more than this pool has no choice"


def test_where_all_stand_still_the_others_go_on_once_one_gives_way() -> None:
    """It was compared with a batch of none, so that they waited for partials instead, whatever these cost."""
    admitting = Admitting(8)
    slow_to_attend_elsewhere(admitting)
    both = [admitting.run("old", 4), admitting.run("young", 4, arrival=1.0)]
    for seq in both:
        seq.request.tokens.append(1)
        seq.uncomputed.add(seq.length - 1, seq.length)
        seq.placement.cover(seq.length)
    admitting.stall()
    assert admitting.state.scheduler.stalled == both
    admitting.make_room()
    assert admitting.state.borrower.active == {}
    assert [seq.state for seq in both] == [RUNNING, WAITING]


def test_nothing_leaves_while_slots_of_one_that_gave_way_come_free() -> None:
    """They are free with the next answer; blocks that left meanwhile had all steps wait for partials for as long as
    their request ran."""
    admitting = Admitting(8)
    full, gone = admitting.run("full", 6), admitting.run("gone", 2, arrival=1.0)
    full.request.tokens.append(1)
    full.uncomputed.add(full.length - 1, full.length)
    full.placement.cover(full.length)
    gone.uncomputed.add(gone.length - 1, gone.length)
    step = admitting.state.scheduler.plan(admitting.state.running(), admitting.clock.now())
    assert step is not None and admitting.state.scheduler.stalled == [full]
    admitting.holdings.preempt(gone, admitting.clock.now(), "a running request needed a slot")
    assert admitting.state.deferred.has_slots and not admitting.state.pool.num_free, "a step in flight names them"
    admitting.make_room()
    assert admitting.state.borrower.active == {}
    admitting.state.scheduler.finished(step.step_id)
    admitting.state.deferred.settle()
    assert admitting.state.pool.num_free == 2


def test_a_profile_says_what_moving_out_costs_before_anybody_waited() -> None:
    """Without it a share of a step is taken, a small part of what it is where creditors are slow."""
    link = LinkProfile(round_trip_s=1.0, bytes_per_s=1e9, read_bytes_per_s=1e9, busy_round_trip_s=1.0)
    for profile, leaves in ((None, True), (make_profile(links={"host": link}), False)):
        admitting = Admitting(8, profile=profile)
        for decodes in (1, 2, 1, 2, 1, 2):
            admitting.state.worth.observe(
                decodes, has_chunks=False, is_remote=False, compute_s=0.01, attend_wait_s=0.0, now=0.0
            )
        admitting.run("small", 2)
        admitting.run("full", 6, arrival=1.0)
        admitting.make_room()
        assert bool(admitting.state.borrower.active) == leaves


def test_with_room_nothing_leaves() -> None:
    admitting = Admitting(12)
    admitting.run("a", 2)
    admitting.make_room()
    assert admitting.state.borrower.active == {}


def standing_still(max_tokens: int = 8) -> tuple[Admitting, Sequence]:
    """Three that stand still for want of a slot, and of them the one that costs least to do again but for the oldest:
    it has 16 tokens, two of four rBlocks at a creditor, and may generate so many."""
    admitting = Admitting(8)
    old = admitting.run("old", 4)
    young = admitting.run("young", 4, arrival=1.0, max_tokens=max_tokens)
    place(admitting.state, young, lend(young, "p", 2, debts=admitting.debts))
    admitting.state.deferred.trim(young)
    filler = admitting.run("filler", 2, arrival=-1.0)
    for seq in (old, young, filler):
        seq.request.tokens.append(1)
        seq.uncomputed.add(seq.length - 1, seq.length)
        seq.placement.cover(seq.length)
    admitting.stall()
    assert set(admitting.state.scheduler.stalled) == {old, young, filler}
    return admitting, young


def gives_way_after(admitting: Admitting, seq: Sequence) -> float:
    """Seconds until one is preempted while nobody lends."""
    began = admitting.clock.now()
    while seq.state is RUNNING and admitting.clock.now() < began + 10.0:
        admitting.make_room()
        for borrow in list(admitting.state.borrower.active.values()):
            admitting.end(borrow)
        admitting.clock.advance(0.001)
    return admitting.clock.now() - began


def test_one_stands_still_for_as_long_as_computing_it_again_takes() -> None:
    for token_s in (0.0005, 0.01):
        admitting, young = standing_still()
        admitting.state.scheduler.times.prompt_token_s = token_s
        assert 0.5 * 16 * token_s <= gives_way_after(admitting, young) <= 1.5 * 16 * token_s + 0.003


def test_one_that_its_pool_cannot_hold_stands_still_for_longer_than_prompts_take() -> None:
    """It would need all of its memory once more, and most of it lies elsewhere: as where no prompt was seen."""
    for max_tokens, token_s in ((40, 0.00001), (8, 0.0)):
        admitting, young = standing_still(max_tokens)
        admitting.state.scheduler.times.prompt_token_s = token_s
        assert 0.5 * 16 * REDO_S <= gives_way_after(admitting, young) <= 1.5 * 16 * REDO_S + 0.003


def test_when_nobody_lends_who_costs_least_is_preempted_but_the_oldest_and_all_of_its_memory_is_free() -> None:
    admitting, young = standing_still()
    old, filler = admitting.state.sequences["old"], admitting.state.sequences["filler"]
    admitting.make_room()
    admitting.end(admitting.borrow())
    assert young.state is RUNNING, "somebody else may give way first"
    admitting.clock.advance(1.5)
    admitting.make_room()
    admitting.end(admitting.borrow())
    assert young.state is WAITING and (old.state, filler.state) == (RUNNING, RUNNING)
    assert young.placement.blocks == [] and list(young.uncomputed) == [(0, 17)] and young.attempt == 1
    assert admitting.state.pool.num_free == 2
    assert [release.span.span_id for release in issued(admitting.state, Release)] == ["young-p-0"]
    assert admitting.state.counters.preemptions == 1
    assert young.retry_at > admitting.clock.now()


def test_nobody_is_preempted_when_a_slot_came_free_meanwhile() -> None:
    admitting = Admitting(4, peers=())
    seq = admitting.run("a", 3)
    other = admitting.run("b", 1, arrival=1.0)
    seq.request.tokens.append(1)
    seq.uncomputed.add(seq.length - 1, seq.length)
    seq.placement.cover(seq.length)
    admitting.stall()
    assert admitting.state.scheduler.stalled == [seq]
    del admitting.state.sequences["b"]
    admitting.debts.drop(other, admitting.clock.now())
    admitting.make_room()
    assert seq.state is RUNNING and admitting.state.counters.preemptions == 0


def test_alone_and_without_peers_the_youngest_is_preempted_at_once() -> None:
    admitting = Admitting(4, peers=())
    old, young = admitting.run("old", 2), admitting.run("young", 2, arrival=1.0)
    old.request.tokens.append(1)
    old.uncomputed.add(old.length - 1, old.length)
    old.placement.cover(old.length)
    admitting.stall()
    admitting.make_room()
    assert (old.state, young.state) == (RUNNING, WAITING)
    assert admitting.state.pool.num_free == 2


def test_who_shares_no_memory_stands_still_for_nobody() -> None:
    """All of its batch stood still for up to a second and a half before each preemption, whoever lent."""
    admitting = Admitting(4)
    old, young = admitting.run("old", 2), admitting.run("young", 2, arrival=1.0)
    old.request.tokens.append(1)
    old.uncomputed.add(old.length - 1, old.length)
    old.placement.cover(old.length)
    admitting.stall()
    admitting.make_room()
    admitting.end(admitting.borrow())
    assert (old.state, young.state) == (RUNNING, WAITING)
    assert admitting.state.pool.num_free == 2


def test_nobody_stands_still_while_a_borrow_that_failed_rests() -> None:
    """A batch whose memory had run out stood still for up to a second and a half before each preemption, once nobody
    had lent."""
    admitting = Admitting(8)
    for number in range(4):
        seq = admitting.run(f"r{number}", 2, arrival=number)
        seq.request.tokens.append(1)
        seq.uncomputed.add(seq.length - 1, seq.length)
        seq.placement.cover(seq.length)
    admitting.stall()
    admitting.make_room()
    admitting.end(admitting.borrow())
    assert admitting.state.counters.preemptions == 1
    admitting.run("next", 2, arrival=9.0)  # takes what came free
    admitting.stall()
    admitting.make_room()
    assert not admitting.state.borrower.active and admitting.making_room.next_deadline() > admitting.clock.now()
    assert admitting.state.counters.preemptions == 2


def test_what_leaves_though_its_request_fits_here_takes_no_memory_that_others_wait_for() -> None:
    admitting = Admitting(8)
    admitting.run("small", 2)
    full = admitting.run("full", 6, arrival=1.0)
    admitting.make_room()
    assert admitting.borrow().is_avoidable
    admitting.end(admitting.borrow())
    full.request.tokens.extend([1] * 40)
    admitting.clock.advance(2.0)
    admitting.make_room()
    assert not admitting.borrow().is_avoidable


def victim(name: str, arrival: float, redo_tokens: int, frees: bool = True) -> Victim:
    return Victim(name, (arrival, name), redo_tokens, frees)


def test_the_cheapest_but_the_oldest() -> None:
    old, dear, cheap = victim("old", 0.0, 1), victim("dear", 1.0, 90), victim("cheap", 2.0, 10)
    assert cheapest([dear, cheap, old]) == cheap
    assert cheapest([dear, old]) == dear
    youngest = victim("youngest", 3.0, 50)
    assert cheapest([old, dear, cheap, youngest]) == cheap
    assert cheapest([old]) == old and cheapest([]) is None


def test_of_equals_the_youngest() -> None:
    same = [victim(f"r{number}", number, 10) for number in range(4)]
    assert cheapest(same) == same[-1]


def test_only_who_frees_a_slot() -> None:
    assert cheapest([victim("old", 0.0, 1), victim("remote", 1.0, 1, frees=False)]) == victim("old", 0.0, 1)
    assert cheapest([victim("remote", 1.0, 1, frees=False)]) is None
