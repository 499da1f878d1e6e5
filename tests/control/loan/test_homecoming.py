"""Homecoming: what was borrowed comes back by itself, whole spans, when there is room that nobody wants."""

from __future__ import annotations

import pytest

from distkv.clock import ManualClock
from distkv.control.blocks import SlotState
from distkv.control.loan.debtor.debts import DebtBook
from distkv.control.loan.debtor.homecoming import AT_ONCE_BLOCKS, LASTING_S, LEAST_ROOM_BLOCKS, PLANNED_S, Homecoming
from distkv.control.loan.debtor.paths import Path
from distkv.control.loan.debtor.recall import Cause, Recaller
from distkv.control.performance.model import PerformanceModel
from distkv.control.request.block import Debt
from distkv.control.request.sequence import SeqState, Sequence
from distkv.wire.messages.from_worker import Pulled
from distkv.wire.messages.to_rmanager import Release
from distkv.wire.messages.to_worker import Pull
from tests.control.parts import add_sequence, compute, issued, lend, make_state, place
from tests.control.performance.profiles import make_profile

SIZE = 12
KEPT = 1 + LEAST_ROOM_BLOCKS + 1
"""Room that one that runs leaves, besides what it grows by: one slot for it, some, and staging."""


class Away:
    """A sequence of twelve blocks, `spans` of them at creditors, in a pool that has `room` beyond what is kept."""

    def __init__(self, spans: dict[str, int], room: int, spare: int = 0) -> None:
        self.clock = ManualClock(10.0)
        lying = sum(spans.values())
        self.state = make_state(SIZE - lying + room + KEPT + 1)
        self.debts = DebtBook(self.state)
        self.recaller = Recaller(self.state, self.debts)
        self.homecoming = Homecoming(self.state, self.debts, self.recaller)
        self.seq: Sequence = add_sequence(self.state, num_tokens=4 * SIZE, max_tokens=1)
        self.lent: dict[str, Debt] = {}
        first = 0
        for creditor, count in spans.items():
            debt = self.lent[creditor] = lend(self.seq, creditor, count, at=first, debts=self.debts, spare=spare)
            for block in self.seq.placement.blocks[first : first + count]:
                slot = self.state.take_slot()
                assert slot is not None
                self.seq.placement.put(block, slot)
            place(self.state, self.seq, debt)
            self.state.pool.free(self.seq.placement.take_unassigned(), SlotState.LOCAL)
            first += count
        compute(self.state, self.seq)
        self.state.commands.clear()

    def look(self) -> list[Pull]:
        self.homecoming.advance(self.clock.now())
        self.state.validate(self.debts.closing_slots() + self.recaller.slots())
        self.debts.validate()
        return issued(self.state, Pull)

    def wait(self, seconds: float = LASTING_S) -> list[Pull]:
        self.look()
        self.clock.advance(seconds)
        return self.look()

    def arrive(self, pull: Pull, problem: str = "") -> None:
        self.recaller.on_pulled(Pulled(pull_id=pull.pull_id, problem=problem), self.clock.now())
        self.state.sequences.take_touched()


def test_a_span_comes_home_a_few_blocks_at_a_time_when_room_has_lasted() -> None:
    away = Away({"p": 6}, room=6)
    away.state.histories.begin(away.seq.request_id, 1)
    assert away.look() == [] and away.homecoming.next_deadline() == away.clock.now() + LASTING_S
    away.clock.advance(LASTING_S)
    (first,) = away.look()
    assert len(first.slots) == AT_ONCE_BLOCKS and away.look() == []
    away.arrive(first)
    (second,) = away.look()
    assert len(second.slots) == 6 - AT_ONCE_BLOCKS
    away.arrive(second)
    assert away.seq.placement.debts == [] and len(issued(away.state, Release)) == 1
    assert away.look() == [] and away.homecoming.next_deadline() == float("inf")
    assert away.state.counters.recalled_blocks == 6
    history = away.state.histories.find(away.seq.request_id)
    assert history is not None
    assert [(one.happened, one.blocks, one.why) for one in history.entries] == [("came_home", 6, Cause.ROOM.value)]


def test_not_half_a_span() -> None:
    assert Away({"p": 6}, room=5).wait() == []


def test_the_smallest_span_comes_first() -> None:
    away = Away({"p": 4, "q": 2}, room=5)
    (pull,) = away.wait()
    assert (pull.source_id, len(pull.slots)) == ("q", 2)
    away.arrive(pull)
    assert away.wait() == [], "there is no room for the other"


def test_room_to_grow_into_counts_and_goes_back_with_the_span() -> None:
    assert Away({"p": 2}, room=3, spare=2).wait() == []
    away = Away({"p": 2}, room=4, spare=2)
    (pull,) = away.wait()
    away.arrive(pull)
    (debt,) = away.seq.placement.debts
    assert (debt.num_lying, debt.num_spare) == (0, 2)
    away.homecoming.advance(away.clock.now())
    assert away.seq.placement.debts == []
    assert [release.positions for release in issued(away.state, Release)] == [(0, 1), ()], "the blocks, then the span"


@pytest.mark.parametrize("why", ["somebody waits", "it drains", "a path in doubt", "it is planned"])
def test_nothing_comes_home_where_it_should_not(why: str) -> None:
    away = Away({"p": 2}, room=6)
    match why:
        case "somebody waits":
            add_sequence(away.state, "other", 400, SeqState.WAITING)
        case "it drains":
            away.state.instance_state = "draining"
        case "a path in doubt":
            away.state.paths.failed(Path("me", "p"), "no blocks came", away.clock.now(), longest_s=60.0)
            away.state.paths.failed(Path("me", "p"), "no blocks came", away.clock.now(), longest_s=60.0)
        case _:
            away.homecoming.on_planned(away.clock.now())
    assert away.wait() == []
    if why == "it is planned":
        assert away.homecoming.next_deadline() == away.clock.now() - LASTING_S + PLANNED_S
        assert away.wait(PLANNED_S)


def test_who_starves_keeps_nothing_away() -> None:
    """It cannot begin whatever is free here."""
    away = Away({"p": 2}, room=6)
    starving = add_sequence(away.state, "other", 400, SeqState.WAITING)
    away.state.sequences.queue.starvation.judge(starving.size_blocks - 1, away.clock.now(), 10)
    assert starving.starves and away.wait()


def test_room_that_comes_and_goes_brings_nothing_home() -> None:
    away = Away({"p": 6}, room=6)
    assert away.look() == []
    taken = away.state.take_slot()
    assert taken is not None
    other = add_sequence(away.state, "other", 1)
    other.placement.put(other.placement.blocks[0], taken)
    assert away.wait() == []


@pytest.mark.parametrize("creditor", ["p", "q"])
def test_what_left_to_even_out_memory_stays_as_long_as_that_goes_on(creditor: str) -> None:
    """What was borrowed for want of memory comes home as ever."""
    away = Away({"p": 3, "q": 3}, room=12)
    away.state.policy = "even"
    away.lent[creditor].is_planned = True
    while pulls := away.wait():
        for pull in pulls:
            assert pull.source_id != creditor
            away.arrive(pull)
    away.state.policy = "contract"
    assert {pull.source_id for pull in away.wait()} == {creditor}


def test_where_moves_are_planned_by_profiles_nothing_comes_home_by_itself() -> None:
    away = Away({"p": 3}, room=8)
    away.state.policy = "greedy"
    away.state.performance = PerformanceModel(make_profile())
    assert away.wait() == [] and away.wait(2 * PLANNED_S) == []
    away.state.performance = None
    assert away.wait(), "without a profile nobody plans for it"
