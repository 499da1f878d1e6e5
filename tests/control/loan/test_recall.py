"""Recaller: blocks that their creditor wants to be rid of come back, or go to another creditor."""

from __future__ import annotations

from distkv.checksums import pack
from distkv.clock import ManualClock
from distkv.control.loan.debtor.borrow import Purpose
from distkv.control.loan.debtor.debts import DebtBook
from distkv.control.loan.debtor.paths import Path
from distkv.control.loan.debtor.recall import Recaller
from distkv.control.request.block import Debt
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.state import LAST_S, RManagerState
from distkv.wire.messages.common import Epoch, SpanRef
from distkv.wire.messages.from_worker import Pulled
from distkv.wire.messages.to_rmanager import Reclaim, Release
from distkv.wire.messages.to_worker import Pull
from tests.control.parts import add_sequence, compute, issued, lend, make_member, make_state, offer, place


class Recalling:
    """A sequence of five blocks, three at p and maybe a fourth on its way there, in a pool with `free` slots."""

    def __init__(self, free: int, spare: int = 0) -> None:
        self.clock = ManualClock(10.0)
        self.state: RManagerState = make_state(num_blocks=16)
        self.debts = DebtBook(self.state)
        self.recaller = Recaller(self.state, self.debts)
        self.seq: Sequence = add_sequence(self.state, num_tokens=18)
        compute(self.state, self.seq)
        self.debt: Debt = lend(self.seq, "p", 3 + spare, debts=self.debts)
        offer(self.seq, self.debt, 3)
        slots, _ = self.seq.taken(self.debt)
        self.state.deferred.add(self.seq, slots)
        while self.state.pool.num_free > free:
            other = add_sequence(self.state, f"x{self.state.pool.num_free}", 1)
            compute(self.state, other)
            self.state.sequences.wait(other, 0.0)
        self.state.commands.clear()

    def reclaim(self, *, is_draining: bool = False, deadline_s: float = 5.0) -> None:
        reclaim = Reclaim(span=self.debt.span, deadline_s=deadline_s, is_draining=is_draining)
        self.recaller.on_reclaim("p", reclaim, self.clock.now())

    def pull(self) -> Pull:
        (pull,) = issued(self.state, Pull)
        return pull

    def check(self) -> None:
        self.state.validate(self.debts.closing_slots() + self.recaller.slots())
        self.debts.validate()


def test_all_come_home_when_there_is_room() -> None:
    recalling = Recalling(free=8)
    recalling.reclaim()
    pull = recalling.pull()
    assert (pull.source_id, pull.source_incarnation, pull.span) == ("p", 1, None)
    assert pull.source_slots == recalling.debt.slots and pull.checksums == pack((1000, 1001, 1002))
    assert sorted(recalling.recaller.slots()) == list(pull.slots)
    recalling.check()
    recalling.reclaim()
    assert issued(recalling.state, Pull) == [], "asked again while they are coming"
    assert recalling.recaller.on_pulled(Pulled(pull_id=pull.pull_id), 11.0)
    assert [block.slot for block in recalling.seq.placement.blocks[:3]] == list(pull.slots)
    assert recalling.seq.placement.debts == [] and len(issued(recalling.state, Release)) == 1
    assert not recalling.recaller.on_pulled(Pulled(pull_id=pull.pull_id), 11.0)
    recalling.check()


def test_who_drains_waits_while_not_all_fits_beside_what_those_that_run_grow_into() -> None:
    recalling = Recalling(free=2)
    recalling.state.sequences.run(recalling.seq)
    assert recalling.state.growing.blocks() >= 2
    recalling.reclaim(is_draining=True, deadline_s=20.0)
    assert issued(recalling.state, Pull) == [], "of three blocks one would fit, and the next token would not"
    recalling.reclaim(is_draining=True, deadline_s=LAST_S)
    assert len(recalling.pull().slots) == 1, "it is computed again otherwise"
    recalling.check()


def test_what_is_kept_at_who_drains_for_growth_stays_until_its_last_seconds() -> None:
    """The request may end before; it would only be asked for again."""
    recalling = Recalling(free=2, spare=2)
    recalling.state.sequences.run(recalling.seq)
    recalling.reclaim(is_draining=True, deadline_s=20.0)
    assert issued(recalling.state, Release) == [] and recalling.debt.capacity == 5
    recalling.check()
    recalling.reclaim(is_draining=True, deadline_s=LAST_S)
    (release,) = issued(recalling.state, Release)
    assert len(release.positions) == 2
    recalling.check()


def test_who_needs_its_memory_itself_does_not_wait() -> None:
    recalling = Recalling(free=2)
    recalling.state.sequences.run(recalling.seq)
    recalling.reclaim(deadline_s=20.0)
    assert len(recalling.pull().slots) == 1
    recalling.check()


def test_positions_to_spare_go_first() -> None:
    recalling = Recalling(free=8)
    kept = lend(recalling.seq, "q", 1, at=3, debts=recalling.debts, spare=3)
    recalling.recaller.on_reclaim("q", Reclaim(span=kept.span, deadline_s=5.0, keep_blocks=2), 10.0)
    (release,) = issued(recalling.state, Release)
    assert (release.span, release.positions) == (kept.span, (1, 2, 3)), "all of them, and the block still goes there"
    assert len(kept.blocks) == kept.capacity == 1
    recalling.recaller.on_reclaim("q", Reclaim(span=kept.span, deadline_s=5.0), 10.0)
    assert kept not in recalling.seq.placement.debts, "now that one stays too"
    recalling.check()


def test_the_others_look_for_another_home() -> None:
    recalling = Recalling(free=3)
    recalling.reclaim()
    assert len(recalling.pull().slots) == 2, "one slot is kept for the running sequence"
    borrow = recalling.state.borrower.of(recalling.seq, Purpose.RECLAIM)
    assert borrow is not None and (borrow.num_blocks, borrow.exclude) == (1, frozenset({"p"}))
    recalling.check()


def test_without_room_all_look_for_another_home_and_only_once() -> None:
    recalling = Recalling(free=1)
    recalling.reclaim()
    recalling.reclaim()
    assert issued(recalling.state, Pull) == []
    assert [borrow.num_blocks for borrow in recalling.state.borrower.active.values()] == [3]


def test_where_both_drain_it_stays_and_so_does_the_room_to_grow() -> None:
    recalling = Recalling(free=8)
    kept = lend(recalling.seq, "p", 1, at=3, debts=recalling.debts, spare=2)
    recalling.state.instance_state = "draining"
    for name in ("p", "q"):
        recalling.state.members[name] = make_member(name, state="draining")
    for debt in (recalling.debt, kept):
        reclaim = Reclaim(span=debt.span, deadline_s=5.0, is_draining=True)
        recalling.recaller.on_reclaim("p", reclaim, recalling.clock.now())
    assert recalling.state.commands == [] and kept.num_spare == 2
    recalling.check()


def test_where_both_drain_and_others_do_not_it_goes_there() -> None:
    """What nothing lies in is of use here until then."""
    recalling = Recalling(free=8, spare=1)
    recalling.state.instance_state = "draining"
    recalling.reclaim(is_draining=True)
    assert recalling.debt.capacity == 4
    assert issued(recalling.state, Pull) == issued(recalling.state, Release) == []
    assert [borrow.num_blocks for borrow in recalling.state.borrower.active.values()] == [3]
    recalling.check()


def test_a_debtor_that_drains_alone_recalls_as_ever() -> None:
    """The creditor wants its memory for a request of its own."""
    recalling = Recalling(free=8)
    recalling.state.instance_state = "draining"
    recalling.reclaim()
    assert len(recalling.pull().slots) == 3
    recalling.check()


def test_a_pull_that_fails_gives_its_slots_back_and_is_tried_again() -> None:
    recalling = Recalling(free=8)
    free = recalling.state.pool.num_free
    recalling.reclaim()
    pull = recalling.pull()
    recalling.recaller.on_pulled(Pulled(pull_id=pull.pull_id, problem="the source is gone"), 11.0)
    assert recalling.state.pool.num_free == free
    assert all(block.arrived for block in recalling.seq.placement.blocks[:3])
    recalling.check()
    recalling.reclaim()
    assert recalling.pull().pull_id != pull.pull_id


def test_a_creditor_that_cannot_be_read_from_is_not_borrowed_from_until_a_pull_works() -> None:
    recalling, path = Recalling(free=8), Path("me", "p")
    recalling.reclaim()
    recalling.recaller.on_pulled(Pulled(pull_id=recalling.pull().pull_id, problem="no link within 3 s"), 13.0)
    paths = recalling.state.paths
    assert paths.is_in_doubt(path) and paths.describe() == "me could not read from p: no link within 3 s"
    assert paths.next_deadline() >= 13.0 + 0.75 * 3.0, "not tried again sooner than it took to fail"
    recalling.reclaim()
    recalling.recaller.on_pulled(Pulled(pull_id=recalling.pull().pull_id), 14.0)
    assert not paths.has_failed(path)
    recalling.check()


def test_what_is_still_there_at_the_deadline_is_given_up_and_nothing_else() -> None:
    recalling = Recalling(free=1)
    recalling.reclaim()
    assert recalling.state.borrower.of(recalling.seq, Purpose.RECLAIM) is not None
    recalling.state.commands.clear()
    seq, attempt = recalling.seq, recalling.seq.attempt
    over = Reclaim(span=recalling.debt.span, deadline_s=0.0, keep_blocks=1)
    recalling.recaller.on_reclaim("p", over, recalling.clock.now())
    (release,) = issued(recalling.state, Release)
    assert (release.span, release.positions) == (recalling.debt.span, (1, 2))
    assert list(seq.uncomputed) == [(4, 12)] and seq.attempt == attempt + 1
    assert seq.placement.debts == [recalling.debt] and recalling.debt.capacity == 1
    assert recalling.state.borrower.of(seq) is None, "nobody else is asked for what is gone"
    recalling.recaller.on_reclaim("p", over, recalling.clock.now())
    assert issued(recalling.state, Release) == [], "told again, there is nothing to give up"
    recalling.check()


def test_what_comes_home_at_the_deadline_is_not_given_up() -> None:
    recalling = Recalling(free=3)
    recalling.reclaim()
    pull = recalling.pull()
    recalling.recaller.on_reclaim("p", Reclaim(span=recalling.debt.span, deadline_s=0.0), recalling.clock.now())
    assert list(recalling.seq.uncomputed) == [(0, 4)], "two of three are on their way"
    recalling.recaller.on_pulled(Pulled(pull_id=pull.pull_id), 11.0)
    assert list(recalling.seq.uncomputed) == [(0, 4)] and recalling.seq.placement.debts == []
    recalling.check()


def test_what_ended_or_was_lost_meanwhile_needs_no_slots() -> None:
    for lost in (True, False):
        recalling = Recalling(free=8)
        recalling.reclaim()
        pull = recalling.pull()
        if lost:
            recalling.debts.lose(recalling.seq, recalling.debt)
        else:
            del recalling.state.sequences["r"]
            recalling.debts.drop(recalling.seq, recalling.clock.now())
        recalling.check()
        recalling.recaller.on_pulled(Pulled(pull_id=pull.pull_id), 11.0)
        assert recalling.recaller.slots() == []
        recalling.check()


def test_blocks_still_on_their_way_there_stay() -> None:
    recalling = Recalling(free=8, spare=1)
    offer(recalling.seq, recalling.debt)
    recalling.reclaim()
    assert issued(recalling.state, Pull) == [], "what is being read is waited for"
    recalling.seq.placement.refused(recalling.debt)
    recalling.reclaim()
    assert recalling.debt.capacity == 3 and recalling.seq.placement.blocks[3].debt is None
    assert len(recalling.pull().slots) == 3
    assert recalling.debt.releasing == {3}, "its creditor is told at once"
    recalling.check()


def test_a_reclaim_of_something_else() -> None:
    recalling = Recalling(free=8)
    other = SpanRef(span_id=recalling.debt.span.span_id, epoch=Epoch(9, 9))
    recalling.recaller.on_reclaim("p", Reclaim(span=other, deadline_s=1.0), 10.0)
    assert recalling.state.commands == []


def test_a_block_that_came_home_and_went_there_again_is_read_once() -> None:
    """It was read twice, once for each position that it has had in the span, and another one was left there."""
    recalling = Recalling(free=8)
    first, second, _, other = recalling.seq.placement.blocks[:4]
    debt = lend(recalling.seq, "q", 1, at=3, debts=recalling.debts, spare=3)
    for block in (first, second, first):
        place(recalling.state, recalling.seq, debt)
        slot, left, index = recalling.state.take_slot(), block.debt, block.index
        assert slot is not None and left is not None
        recalling.seq.placement.take_back(block, slot)
        recalling.debts.release_positions(recalling.seq, left, [index])
        recalling.seq.placement.borrow(debt, [block])
    place(recalling.state, recalling.seq, debt)
    recalling.state.commands.clear()
    assert debt.placed() == [other, second, first]
    recalling.recaller.on_reclaim("q", Reclaim(span=debt.span, deadline_s=5.0), 10.0)
    assert recalling.pull().source_slots == tuple(debt.slots[index] for index in (0, 2, 3))
    recalling.check()
