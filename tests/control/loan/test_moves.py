"""Mover: checksum, blocks ready, complete; one block at a time or many, from here or from another creditor."""

from __future__ import annotations

import pytest

from distkv.checksums import pack
from distkv.clock import ManualClock
from distkv.control.loan.debtor.debts import DebtBook
from distkv.control.loan.debtor.moves import (
    FIRST_AGAIN_S,
    LONGEST_AGAIN_S,
    MAX_FAILURES,
    UNANSWERED_S,
    Mover,
)
from distkv.control.loan.debtor.paths import Path
from distkv.control.request.block import Debt
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.wire.messages.from_worker import Checksummed
from distkv.wire.messages.to_rmanager import MAX_READY_BLOCKS, BlocksReady, Complete, ReadyBlock, Release
from distkv.wire.messages.to_worker import Checksum
from tests.control.parts import add_sequence, compute, issued, lend, make_state, place, validate


class Moving:
    """A computed sequence of ten full blocks and a tail, and what moves it."""

    def __init__(self, num_blocks: int = 11) -> None:
        self.clock = ManualClock(10.0)
        self.state: RManagerState = make_state(num_blocks=num_blocks + 5)
        self.debts = DebtBook(self.state)
        self.mover = Mover(self.state, self.debts)
        self.seq: Sequence = add_sequence(self.state, num_tokens=num_blocks * 4 - 2)
        compute(self.state, self.seq)

    def advance(self) -> None:
        self.mover.advance(self.seq, self.clock.now())

    def checksum(self) -> Checksum:
        """The worker answers the one `Checksum` there is: slot n has checksum 500 + n."""
        (command,) = issued(self.state, Checksum)
        self.mover.on_checksummed(
            Checksummed(checksum_id=command.checksum_id, checksums=pack(500 + slot for slot in command.slots))
        )
        self.advance()
        return command

    def ready(self) -> BlocksReady:
        (ready,) = issued(self.state, BlocksReady)
        return ready

    def complete(self, debt: Debt, ready: BlocksReady, problem: str = "") -> None:
        count = 0 if problem else len(ready.blocks)
        message = Complete(span=debt.span, index=ready.index, num_blocks=count, problem=problem)
        self.mover.on_complete(debt.creditor_id, message, self.clock.now())

    def check(self) -> None:
        validate(self.state, self.debts)


def test_from_seal_to_the_new_place() -> None:
    moving = Moving()
    debt = lend(moving.seq, "p", 2, debts=moving.debts)
    slots = [block.slot for block in debt.blocks]
    moving.advance()
    moving.advance()
    assert list(moving.checksum().slots) == slots, "checksummed once"
    ready = moving.ready()
    assert (ready.span, ready.index, ready.source_id, ready.source_incarnation) == (debt.span, 0, "me", 7)
    assert ready.blocks == tuple(ReadyBlock(slot, 500 + slot) for slot in slots if slot is not None)
    version = moving.seq.placement.version
    moving.complete(debt, ready)
    assert debt.filled == 2 and debt.num_ready == 0 and moving.seq.placement.version == version + 1
    assert all(block.arrived and block.slot is None for block in debt.blocks)
    assert moving.state.counters.moved_blocks == 2
    assert moving.state.pool.num_free == 5 + 2, "what they left is free: no step names it"
    moving.check()


def test_what_they_leave_is_free_after_the_last_step_that_names_it() -> None:
    moving = Moving()
    debt = lend(moving.seq, "p", 2, debts=moving.debts)
    moving.advance()
    moving.checksum()
    moving.seq.uncomputed.add(moving.seq.length - 1, moving.seq.length)
    step = moving.state.scheduler.plan(moving.state.running(), 0.0)
    assert step is not None
    moving.complete(debt, moving.ready())
    assert moving.state.pool.num_free == 5
    moving.check()
    moving.state.scheduler.finished(step.step_id)
    moving.state.deferred.settle()
    assert moving.state.pool.num_free == 7
    moving.check()


def test_blocks_leave_in_order_as_they_are_computed() -> None:
    moving = Moving()
    debt = lend(moving.seq, "p", 4, debts=moving.debts)
    for block in moving.seq.placement.blocks[1:]:
        block.full = False
        moving.seq.placement.counts.update(block)
    moving.advance()
    moving.checksum()
    ready = moving.ready()
    assert len(ready.blocks) == 1
    moving.seq.placement.mark_full(moving.seq.placement.blocks[2:4])
    moving.complete(debt, ready)
    moving.advance()
    moving.checksum()
    assert issued(moving.state, BlocksReady) == [], "block 1 comes first"
    moving.seq.placement.mark_full(moving.seq.placement.blocks[1:2])
    moving.advance()
    moving.checksum()
    ready = moving.ready()
    assert (ready.index, len(ready.blocks)) == (1, 3)


def test_at_most_so_many_at_a_time() -> None:
    moving = Moving(num_blocks=3 * MAX_READY_BLOCKS)
    debt = lend(moving.seq, "p", 3 * MAX_READY_BLOCKS - 1, debts=moving.debts)
    moving.advance()
    assert len(moving.checksum().slots) == 2 * MAX_READY_BLOCKS
    ready = moving.ready()
    assert len(ready.blocks) == MAX_READY_BLOCKS
    moving.complete(debt, ready)
    moving.advance()
    ready = moving.ready()
    assert (ready.index, len(ready.blocks)) == (MAX_READY_BLOCKS, MAX_READY_BLOCKS)


def test_an_expose_without_an_answer_is_sent_again_word_for_word() -> None:
    moving = Moving()
    debt = lend(moving.seq, "p", 2, debts=moving.debts)
    moving.advance()
    moving.checksum()
    first = moving.ready()
    moving.clock.advance(FIRST_AGAIN_S - 0.01)
    moving.advance()
    assert issued(moving.state, BlocksReady) == []
    moving.clock.advance(0.02)
    moving.advance()
    moving.advance()
    assert moving.ready() == first
    moving.complete(debt, first)
    moving.complete(debt, first)
    assert debt.filled == 2 and moving.state.counters.moved_blocks == 2, "the second answer changes nothing"


def test_it_is_sent_again_soon_and_then_ever_more_rarely() -> None:
    """One that is lost holds up a prompt that leaves block by block."""
    moving = Moving()
    lend(moving.seq, "p", 2, debts=moving.debts)
    moving.advance()
    moving.checksum()
    moving.advance()
    start, sent_at = moving.clock.now(), [0.0]
    issued(moving.state, BlocksReady)
    while sent_at[-1] < 7.0:
        moving.clock.advance(moving.mover.next_deadline() - moving.clock.now())
        moving.mover.tick(moving.clock.now())
        moving.advance()
        sent_at += [moving.clock.now() - start] * len(issued(moving.state, BlocksReady))
    assert sent_at == pytest.approx([0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 6.0, 8.0])
    assert sent_at[1] == FIRST_AGAIN_S and sent_at[-1] - sent_at[-2] == LONGEST_AGAIN_S


def test_a_debt_that_cannot_be_filled_is_given_up_after_some_tries() -> None:
    moving = Moving()
    debt = lend(moving.seq, "p", 2, debts=moving.debts)
    moving.advance()
    moving.checksum()
    for attempt in range(MAX_FAILURES):
        ready = moving.ready()
        assert debt in moving.seq.placement.debts
        moving.complete(debt, ready, "a checksum does not match")
        moving.advance()
        assert debt.failures == attempt + 1
    assert moving.seq.placement.debts == []
    assert [release.span for release in issued(moving.state, Release)] == [debt.span]
    assert moving.seq.placement.unsettled and all(block.slot is not None for block in moving.seq.placement.blocks)
    moving.check()


def test_a_path_is_left_alone_for_half_as_long_as_all_moves_took_that_failed_by_it() -> None:
    moving = Moving()
    debt = lend(moving.seq, "p", 2, debts=moving.debts)
    moving.advance()
    moving.checksum()
    for _ in range(MAX_FAILURES):
        ready = moving.ready()
        moving.clock.advance(4.0)
        moving.complete(debt, ready, "too slow")
        moving.advance()
    path = Path("p", moving.state.settings.instance_id)
    moving.state.paths.tick(moving.clock.now() + 0.75 * 4.0 * MAX_FAILURES / 2 - 0.1)
    assert moving.state.paths.is_in_doubt(path)


def test_a_success_forgives_failures() -> None:
    moving = Moving()
    debt = lend(moving.seq, "p", 3, debts=moving.debts)
    moving.seq.placement.blocks[2].full = False
    moving.advance()
    moving.checksum()
    moving.complete(debt, moving.ready(), "busy")
    moving.advance()
    moving.complete(debt, moving.ready())
    assert debt.failures == 0 and debt.filled == 2


def test_a_checksum_that_comes_late_is_not_that_of_another_life_of_the_block() -> None:
    moving = Moving()
    debt = lend(moving.seq, "p", 1, debts=moving.debts)
    moving.advance()
    (command,) = issued(moving.state, Checksum)
    block = moving.seq.placement.blocks[0]
    block.full = False
    moving.mover.on_checksummed(Checksummed(checksum_id=command.checksum_id, checksums=pack([1])))
    moving.mover.on_checksummed(Checksummed(checksum_id=command.checksum_id, checksums=pack([1])))
    assert block.checksum is None and not block.checksumming and debt.num_ready == 0


def test_from_one_creditor_to_another() -> None:
    moving = Moving()
    old = lend(moving.seq, "p", 2, debts=moving.debts)
    place(moving.state, moving.seq, old)
    moving.state.commands.clear()
    new = lend(moving.seq, "q", 2, debts=moving.debts)
    moving.advance()
    ready = moving.ready()
    assert (ready.source_id, ready.source_incarnation) == ("p", 1)
    assert ready.blocks == tuple(ReadyBlock(old.slots[i], 1000 + i) for i in (0, 1))
    assert moving.seq.placement.blocks[0].location() == (old, 0), "attended at its old place until it has arrived"
    moving.complete(new, ready)
    assert moving.seq.placement.blocks[0].location() == (new, 0)
    assert moving.seq.placement.debts == [new]
    assert [release.span for release in issued(moving.state, Release)] == [old.span]
    moving.check()


@pytest.mark.parametrize("again", ["not yet", "computed", "checksummed"])
def test_the_old_place_is_lost_while_the_new_creditor_has_read_it(again: str) -> None:
    """It has what `BlocksReady` named, checksum included, however far the block was computed again meanwhile."""
    moving = Moving()
    old = lend(moving.seq, "p", 2, debts=moving.debts)
    place(moving.state, moving.seq, old)
    new = lend(moving.seq, "q", 2, debts=moving.debts)
    moving.state.commands.clear()
    moving.advance()
    ready = moving.ready()
    moving.debts.lose(moving.seq, old)
    assert list(moving.seq.uncomputed) == [(0, 8)]
    if again != "not yet":
        compute(moving.state, moving.seq, moving=True)
        moving.advance()
    if again == "checksummed":
        moving.checksum()
    moving.complete(new, ready)
    assert [block.checksum for block in moving.seq.placement.blocks[:2]] == [1000, 1001]
    assert all(block.arrived and block.full for block in moving.seq.placement.blocks[:2])
    assert list(moving.seq.uncomputed) == [] and moving.seq.placement.debts == [new]
    moving.check()


def test_what_is_left_behind_goes_back_though_others_stay() -> None:
    moving = Moving()
    old = lend(moving.seq, "p", 3, debts=moving.debts)
    place(moving.state, moving.seq, old)
    moving.state.commands.clear()
    new = lend(moving.seq, "q", 2, debts=moving.debts)
    moving.advance()
    moving.complete(new, moving.ready())
    assert issued(moving.state, Release) == [Release(span=old.span, positions=(0, 1))]
    assert (old.capacity, old.releasing) == (1, {0, 1}) and moving.seq.placement.debts == [old, new]
    moving.check()


def test_one_expose_names_one_source() -> None:
    moving = Moving()
    old = lend(moving.seq, "p", 2, debts=moving.debts)
    place(moving.state, moving.seq, old)
    new = lend(moving.seq, "q", 4, debts=moving.debts)
    moving.advance()
    moving.checksum()
    assert new.num_ready == 2 and new.blocks_ready is not None and new.blocks_ready.source_id == "p"


def test_a_source_that_is_no_member_is_not_named() -> None:
    moving = Moving()
    place(moving.state, moving.seq, lend(moving.seq, "p", 2, debts=moving.debts))
    new = lend(moving.seq, "q", 2, debts=moving.debts)
    del moving.state.members["p"]
    moving.advance()
    assert issued(moving.state, BlocksReady) == [] and new.num_ready == 0


@pytest.mark.parametrize("index", [1, 0])
def test_answers_to_nothing_change_nothing(index: int) -> None:
    moving = Moving()
    debt = lend(moving.seq, "p", 2, debts=moving.debts)
    moving.mover.on_complete("p", Complete(span=debt.span, index=index, num_blocks=1), 0.0)
    moving.debts.give_back([debt])
    moving.mover.on_complete("p", Complete(span=debt.span, index=0, num_blocks=1), 0.0)
    assert debt.filled == 0 and moving.state.counters.moved_blocks == 0


def test_a_creditor_that_takes_nothing_and_does_not_say_why_is_left_alone() -> None:
    moving = Moving()
    debt = lend(moving.seq, "p", 2, debts=moving.debts)
    moving.advance()
    moving.checksum()
    moving.clock.advance(UNANSWERED_S - 0.01)
    moving.advance()
    assert issued(moving.state, BlocksReady) == [debt.blocks_ready] * 2 and debt.num_ready == 2
    moving.mover.tick(moving.clock.advance(0.01))
    moving.advance()
    assert moving.seq.placement.debts == [] and moving.state.paths.is_in_doubt(Path("p", "me"))
    assert all(block.slot is not None and block.full for block in moving.seq.placement.blocks[:2]), "they stay here"
    assert moving.mover.next_deadline() <= moving.clock.now(), "what has no place now is looked at again"
    moving.check()


def test_a_creditor_that_takes_less_than_it_was_offered_is_named_with_what_it_took() -> None:
    moving = Moving()
    debt = lend(moving.seq, "p", 2, debts=moving.debts)
    moving.advance()
    moving.checksum()
    for _ in range(MAX_FAILURES):
        ready = moving.ready()
        moving.mover.on_complete("p", Complete(span=debt.span, index=ready.index, num_blocks=1), moving.clock.now())
        moving.advance()
    assert moving.state.paths.describe() == "p could not read from me: it took 1 of 2 blocks"


def test_pulls_that_fail_put_the_path_in_doubt_and_one_that_works_forgives() -> None:
    moving = Moving()
    debt = lend(moving.seq, "p", 2, debts=moving.debts)
    moving.advance()
    moving.checksum()
    for _ in range(MAX_FAILURES):
        moving.complete(debt, moving.ready(), "no route")
        moving.advance()
    assert moving.state.paths.is_in_doubt(Path("p", "me")) and "no route" in moving.state.paths.describe()
    again = lend(moving.seq, "p", 2, debts=moving.debts)
    moving.advance()
    moving.complete(again, moving.ready())
    assert not moving.state.paths.has_failed(Path("p", "me"))
