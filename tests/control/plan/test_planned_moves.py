"""PlannedMoves: what a gManager planned is begun where it can be, and dropped and counted where it cannot."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from distkv import events
from distkv.clock import ManualClock
from distkv.control.commands import Publish
from distkv.control.loan.debtor.borrow import Purpose
from distkv.control.loan.debtor.debts import DebtBook
from distkv.control.loan.debtor.recall import Recaller
from distkv.control.plan.planned_moves import STALE_AFTER, TOLD_BY, PlannedMoves
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.control.schedule.holdings import Holdings
from distkv.wire.messages.common import Epoch, PlanEpoch
from distkv.wire.messages.from_worker import Pulled
from distkv.wire.messages.to_gmanager import MAX_DROPPED, BorrowQuery, DroppedMove
from distkv.wire.messages.to_rmanager import Granted, MoveKvcache, Refused, Release, TryMoveKvcache
from distkv.wire.messages.to_worker import Pull
from tests.control.parts import add_sequence, compute, issued, lend, make_state, place

SEQ = 9
"""Of the instance's newest heartbeat."""
PLAN = MoveKvcache(
    request_id="r",
    num_blocks=3,
    destination="p",
    epoch=PlanEpoch(5, 1),
    debtor_incarnation=7,
    seq=SEQ,
    gain_tokens_per_s=2.5,
)


class Planned:
    """An instance of 12 slots that runs "r" with 5 blocks, the last of them not full."""

    def __init__(self, num_blocks: int = 12) -> None:
        self.clock = ManualClock(10.0)
        self.newest_seq = SEQ
        self.state: RManagerState = make_state(num_blocks)
        self.debts = DebtBook(self.state)
        holdings = Holdings(self.state, self.debts, Random(1))
        self.recaller = Recaller(self.state, self.debts)
        self.moves = PlannedMoves(self.state, self.debts, holdings, self.recaller, lambda: self.newest_seq)
        self.seq: Sequence = add_sequence(self.state, num_tokens=18)
        compute(self.state, self.seq)

    def plan(self, **fields: Any) -> None:
        self.moves.on_move(msgspec.structs.replace(PLAN, **fields), self.clock.now())
        self.check()

    def asked(self) -> TryMoveKvcache:
        (wanted,) = issued(self.state, TryMoveKvcache)
        return wanted

    def grant(self, wanted: TryMoveKvcache, num_blocks: int, creditor: str = "p") -> None:
        slots = tuple(range(num_blocks))
        granted = Granted(span_id=wanted.span_id, epoch=Epoch(1, 1), slots=slots, ttl_s=4.0)
        self.debts.on_granted(creditor, granted, self.clock.now())
        self.end()

    def end(self) -> None:
        borrow = self.state.borrower.take_finished()
        assert borrow is not None and borrow.purpose is Purpose.PLANNED
        self.moves.on_borrowed(borrow)
        self.check()

    def check(self) -> None:
        self.state.validate(self.debts.closing_slots() + self.recaller.slots())
        self.debts.validate()

    @property
    def counts(self) -> tuple[int, int, int]:
        counters = self.state.counters
        return counters.planned_moves, counters.planned_blocks, counters.infeasible_moves


def test_the_oldest_full_blocks_go_to_the_creditor_that_was_planned_and_to_no_other() -> None:
    planned = Planned()
    planned.plan()
    begun = events.MoveBegun(request_id="r", destination="p", blocks=3, gain_tokens_per_s=2.5)
    assert Publish(begun) in planned.state.commands
    assert not any(isinstance(getattr(one, "body", None), BorrowQuery) for one in planned.state.commands)
    wanted = planned.asked()
    assert (wanted.request_id, wanted.num_blocks, wanted.waited_s) == ("r", 3, 0.0)
    planned.grant(wanted, 2)
    (debt,) = planned.seq.placement.debts
    assert (debt.creditor_id, [block.number for block in debt.blocks]) == ("p", [0, 1])
    assert planned.counts == (1, 3, 0)


def test_never_more_than_is_full_and_has_no_other_destination() -> None:
    planned = Planned()
    lend(planned.seq, "q", 1, debts=planned.debts)
    planned.plan(num_blocks=100)
    assert planned.asked().num_blocks == 3, "the last one is being written, the first is leaving"


def test_a_refusal_ends_it() -> None:
    planned = Planned()
    planned.plan()
    refused = Refused(span_id=planned.asked().span_id, reason="nothing to lend", free_blocks=0)
    planned.state.borrower.on_refused("p", refused, planned.clock.now())
    planned.end()
    assert planned.seq.placement.debts == [] and planned.counts == (1, 3, 1)
    assert issued(planned.state, BorrowQuery) == []
    assert planned.moves.dropped() == (DroppedMove(PLAN.epoch, "p granted nothing"),)


def test_who_cannot_be_asked_is_not() -> None:
    planned = Planned()
    planned.plan(destination="stranger")
    assert issued(planned.state, TryMoveKvcache) == []
    planned.end()
    assert planned.counts == (1, 3, 1)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"request_id": "gone"}, "it is not served here"),
        ({"num_blocks": 0}, "none of its full rBlocks is here"),
        ({"debtor_incarnation": 6}, None),
        ({"seq": SEQ - STALE_AFTER}, "it came too late"),
        ({"seq": SEQ + 1}, "it came too late"),
    ],
)
def test_what_cannot_be_done_is_dropped(fields: dict[str, Any], why: str | None) -> None:
    planned = Planned()
    planned.plan(**fields)
    assert planned.state.commands == [] and planned.counts == (0, 0, 1)
    assert planned.moves.dropped() == (() if why is None else (DroppedMove(PLAN.epoch, why),))


def test_a_drop_is_told_by_some_heartbeats_and_in_the_history() -> None:
    planned = Planned()
    planned.state.histories.begin("r", 18)
    planned.plan(num_blocks=0)
    for _ in range(TOLD_BY):
        assert [one.epoch for one in planned.moves.dropped()] == [PLAN.epoch]
        planned.newest_seq += 1
    assert planned.moves.dropped() == ()
    history = planned.state.histories.find("r")
    assert history is not None
    (entry,) = history.entries
    assert (entry.happened, entry.instance_id, entry.why) == ("dropped", "p", "none of its full rBlocks is here")


def test_what_comes_twice_was_not_dropped() -> None:
    planned = Planned()
    planned.plan()
    planned.plan()
    assert planned.counts == (1, 3, 1) and planned.moves.dropped() == ()


def test_what_is_told_is_bounded() -> None:
    planned = Planned()
    for number in range(1, MAX_DROPPED + 5):
        planned.plan(request_id="gone", epoch=PlanEpoch(5, number))
    assert [one.epoch.counter for one in planned.moves.dropped()] == list(range(5, MAX_DROPPED + 5))


def test_a_plan_counts_once_and_not_behind_a_newer_one_of_the_same_gmanager() -> None:
    planned = Planned()
    planned.plan(epoch=PlanEpoch(5, 3), num_blocks=1)
    planned.plan(epoch=PlanEpoch(5, 3), num_blocks=1)
    planned.plan(epoch=PlanEpoch(5, 2), num_blocks=1, destination="q")
    assert planned.counts == (1, 1, 2)
    planned.plan(epoch=PlanEpoch(4, 1), num_blocks=1, destination="q")
    assert planned.counts == (2, 2, 2), "another gManager counts for itself"


def test_two_creditors_at_once_get_different_blocks() -> None:
    planned = Planned()
    planned.plan(num_blocks=3)
    first = planned.asked()
    planned.plan(num_blocks=3, destination="q", epoch=PlanEpoch(5, 2))
    second = planned.asked()
    assert (first.num_blocks, second.num_blocks) == (3, 1)
    planned.grant(second, 1, "q")
    planned.grant(first, 3)
    blocks = {debt.creditor_id: [block.number for block in debt.blocks] for debt in planned.seq.placement.debts}
    assert blocks == {"q": [0], "p": [1, 2, 3]}
    planned.plan(num_blocks=3, epoch=PlanEpoch(5, 3))
    assert planned.counts == (2, 4, 1), "nothing is left that could go"


def test_a_request_that_borrows_for_itself_or_drains_is_left_alone() -> None:
    planned = Planned()
    planned.state.borrower.start(planned.seq, Purpose.RELIEVE, 1, 10.0)
    planned.plan()
    assert planned.counts == (0, 0, 1)
    planned = Planned()
    planned.state.instance_state = "draining"
    planned.plan()
    assert planned.counts == (0, 0, 1)


def test_one_that_does_not_run_any_more_gives_back_what_was_granted() -> None:
    planned = Planned()
    planned.plan()
    wanted = planned.asked()
    planned.state.sequences.wait(planned.seq, 0.0)
    planned.grant(wanted, 3)
    assert [release.span.span_id for release in issued(planned.state, Release)] == [wanted.span_id]
    assert planned.counts == (1, 3, 1)


def test_what_is_kept_at_the_creditor_is_used_before_it_is_asked() -> None:
    planned = Planned()
    kept = lend(planned.seq, "p", 0, debts=planned.debts, spare=2)
    lend(planned.seq, "q", 0, debts=planned.debts, spare=2)
    planned.plan()
    assert [block.number for block in kept.blocks] == [0, 1] and planned.asked().num_blocks == 1


def test_blocks_come_home_from_where_fewest_lie_as_far_as_there_is_room() -> None:
    planned = Planned()
    many = lend(planned.seq, "p", 3, debts=planned.debts)
    few = lend(planned.seq, "q", 1, at=3, debts=planned.debts)
    place(planned.state, planned.seq, many)
    place(planned.state, planned.seq, few)
    planned.state.deferred.trim(planned.seq)
    planned.state.commands.clear()
    planned.plan(destination="me", num_blocks=2)
    pulls = issued(planned.state, Pull)
    assert [(pull.source_id, len(pull.slots)) for pull in pulls] == [("q", 1), ("p", 1)]
    planned.plan(destination="me", num_blocks=2, epoch=PlanEpoch(5, 2))
    assert planned.counts == (1, 2, 1), "once at a time"
    for pull in pulls:
        assert planned.recaller.on_pulled(Pulled(pull_id=pull.pull_id), 11.0)
    assert planned.seq.placement.debts == [many] and many.capacity == 2
    planned.check()


def test_nothing_comes_home_into_room_that_is_needed() -> None:
    planned = Planned()
    debt = lend(planned.seq, "p", 3, debts=planned.debts)
    place(planned.state, planned.seq, debt)
    planned.state.deferred.trim(planned.seq)
    waiting = add_sequence(planned.state, "w", 4)
    planned.state.sequences.wait(waiting, 0.0)
    planned.plan(destination="me")
    assert planned.counts == (0, 0, 1), "somebody waits for memory"
    planned.state.sequences.run(waiting)
    free = planned.state.pool.num_free
    room = free - planned.state.growing.blocks()
    assert 0 < room < 100
    planned.plan(destination="me", num_blocks=100, epoch=PlanEpoch(5, 2))
    (pull,) = issued(planned.state, Pull)
    assert len(pull.slots) == min(3, room)
