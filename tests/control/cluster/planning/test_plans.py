"""Plans: what was planned is neither undone nor repeated at once; what heartbeats show of it is judged by what they say
later, and what was dropped is told and forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from distkv.control.cluster.ledger import Entry, Ledger
from distkv.control.cluster.planning.plans import (
    COOL_S,
    FIRST_PAUSE_S,
    JUDGE_S,
    LONGEST_PAUSE_S,
    MOST_KEPT,
    MOST_UNSEEN,
    UNDO_S,
    UNSEEN_HEARTBEATS,
    Plans,
)
from distkv.control.cluster.policy.interface import Move
from distkv.control.plan.planned_moves import STALE_AFTER
from distkv.events import MoveDropped, MoveJudged
from distkv.wire.messages.common import PlanEpoch
from distkv.wire.messages.to_gmanager import Debtor, DroppedMove, Heartbeat, LongRequest, RequestPlacementEntry
from tests.control.parts import make_member

OUT = Move(request_id="r", debtor_id="a", creditor_id="b", num_blocks=4, gain_tokens_per_s=30.0)
HOME = Move(request_id="r", debtor_id="a", creditor_id="a", num_blocks=4, gain_tokens_per_s=5.0)
ELSEWHERE = 8
"""rBlocks of r that lie at b."""


class Kept:
    """Plans of a gManager whose instances a and b generate 100 tokens each second for each of so many
    requests; a serves r."""

    def __init__(self) -> None:
        self.batch = {"a": 1, "b": 2}
        self.lent = ELSEWHERE
        self.seqs = {"a": 0, "b": 0}
        self.ledger = Ledger()
        for name in self.batch:
            self.ledger.add(Entry(make_member(name), 0.0, state="ready"))
        self.plans = Plans(7, self.ledger)
        self.beat()

    def beat(self, is_served: bool = True, **fields: Any) -> None:
        """Both say how they are; fields: of a's heartbeat."""
        self.tell("a", {"r": 5} if is_served else {}, True, **fields)
        self.tell("b", {"r": self.lent} if is_served else {}, False, debtors=(Debtor("a", self.lent),))

    def tell(self, name: str, placed: dict[str, int], local: bool, **fields: Any) -> None:
        self.seqs[name] += 1
        entries = tuple(
            RequestPlacementEntry(req_id=req, inst_id=name, num_blocks=n, local=local) for req, n in placed.items()
        )
        known = {"generated_per_s": 100.0 * self.batch[name], "entries": entries}
        beat = Heartbeat(instance_id=name, incarnation=1, seq=self.seqs[name], base=0, full=True, **known | fields)
        assert self.ledger.apply(beat)

    def begin(self, now: float) -> list[MoveJudged | MoveDropped]:
        return self.plans.begin(now)

    def put(self, move: Move, now: float, is_seen: bool = True) -> PlanEpoch:
        """A move is planned, and the next heartbeats show it."""
        self.begin(now)
        epoch = self.plans.put(move)
        if is_seen:
            self.lent += -4 if move.is_homeward else 4
            self.beat()
        return epoch

    def may(self, now: float) -> tuple[bool, bool]:
        self.begin(now)
        return self.plans.may_leave("r"), self.plans.may_come_home("r")


def test_what_left_may_soon_leave_on_but_not_come_home() -> None:
    kept = Kept()
    assert kept.may(100.0) == (True, True)
    assert kept.put(OUT, 100.0) == PlanEpoch(7, 1)
    assert kept.may(100.0 + 0.9 * COOL_S) == (False, False)
    assert kept.may(100.0 + COOL_S) == (True, False)
    assert kept.may(100.0 + UNDO_S) == (True, True)


def test_what_came_home_stays_for_a_while() -> None:
    kept = Kept()
    kept.put(HOME, 100.0)
    assert kept.may(100.0 + COOL_S) == (False, True)
    assert kept.may(100.0 + UNDO_S) == (True, True)


def test_epochs_ascend() -> None:
    kept = Kept()
    assert kept.plans.put(OUT) < kept.plans.put(HOME) == PlanEpoch(7, 2)


def test_a_move_that_was_seen_is_judged_once_by_what_both_generate_then() -> None:
    kept = Kept()
    kept.put(OUT, 100.0)
    kept.batch = {"a": 3, "b": 2}
    kept.beat()
    assert kept.begin(100.0 + 0.9 * JUDGE_S) == []
    (judged,) = kept.begin(100.0 + JUDGE_S)
    assert isinstance(judged, MoveJudged)
    assert judged == MoveJudged(
        request_id="r",
        debtor="a",
        destination="b",
        blocks=4,
        predicted_tokens_per_s=30.0,
        achieved_tokens_per_s=judged.achieved_tokens_per_s,
    )
    assert round(judged.achieved_tokens_per_s) == 200
    assert kept.begin(100.0 + 2 * JUDGE_S) == [] and kept.plans.may_plan_for("a")


def test_what_is_computed_but_generates_nothing_is_no_gain() -> None:
    """Prompts that are computed, and batches whose steps were short before, were taken for output."""
    kept = Kept()
    kept.put(OUT, 100.0)
    kept.beat(running=30, step_s=0.001)
    (judged,) = kept.begin(100.0 + JUDGE_S)
    assert isinstance(judged, MoveJudged) and judged.achieved_tokens_per_s == 0.0


def test_what_goes_to_memory_that_was_kept_there_is_seen_by_the_debtors_word() -> None:
    """The creditor holds as many rBlocks for the request as before."""
    kept = Kept()
    kept.beat(longest=(LongRequest("r", 9, 2),))
    kept.put(OUT, 100.0, is_seen=False)
    kept.beat(longest=(LongRequest("r", 5, 6),))
    assert kept.begin(100.5) == []
    assert [type(told) for told in kept.begin(100.0 + JUDGE_S)] == [MoveJudged]


def dropped(why: str, move: Move = OUT) -> MoveDropped:
    return MoveDropped(request_id="r", debtor="a", destination=move.creditor_id, blocks=4, why=why)


@pytest.mark.parametrize("move", [OUT, HOME])
def test_what_the_debtor_dropped_is_told_and_planned_again_by_the_next_heartbeat(move: Move) -> None:
    """It was judged as if it had been carried out: what went wrong meanwhile was its fault, and held other moves up."""
    kept = Kept()
    epoch = kept.put(move, 100.0, is_seen=False)
    kept.batch = {"a": 1, "b": 1}
    kept.beat(dropped_moves=(DroppedMove(PlanEpoch(6, 1), "of another gManager"), DroppedMove(epoch, "it waits")))
    assert kept.begin(100.5) == [dropped("it waits", move)]
    assert kept.may(100.5) == (True, True) and kept.plans.may_plan_for("a")
    assert kept.begin(100.0 + 2 * JUDGE_S) == [] and kept.plans.may_plan_for("a"), "it is not judged"


@pytest.mark.parametrize("num_dropped", [1, 2])
def test_of_two_moves_of_one_request_both_must_be_dropped_before_it_is_planned_for_again(num_dropped: int) -> None:
    """One was dropped, the other was carried out, and half a second later more of the request was to move."""
    kept = Kept()
    epochs = [kept.put(OUT, 100.0, is_seen=False), kept.plans.put(OUT)]
    kept.beat(dropped_moves=tuple(DroppedMove(epoch, "it waits") for epoch in epochs[:num_dropped]))
    assert kept.begin(100.5) == num_dropped * [dropped("it waits")]
    kept.lent += 4 * (2 - num_dropped)
    kept.beat()
    assert kept.may(101.0)[0] is (num_dropped == 2)
    assert kept.may(100.0 + COOL_S)[0]


def test_what_is_dropped_again_and_again_is_not_planned_by_every_heartbeat() -> None:
    kept, now, times = Kept(), 100.0, 0
    for _ in range(24):
        if kept.may(now)[0]:
            times += 1
            epoch = kept.put(OUT, now, is_seen=False)
        now += 0.5
        kept.beat(dropped_moves=(DroppedMove(epoch),))
    assert times <= 2 * 12 / COOL_S


def test_what_never_arrived_was_dropped_once_its_debtor_would_not_begin_it_any_more() -> None:
    kept = Kept()
    kept.put(OUT, 100.0, is_seen=False)
    told: list[MoveJudged | MoveDropped] = []
    for count in range(1, UNSEEN_HEARTBEATS + 1):
        assert told == [] and kept.may(100.0 + count) == (False, False)
        kept.beat()
        told = kept.begin(100.0 + count)
    assert told == [dropped(f"{UNSEEN_HEARTBEATS} heartbeats of a show nothing of it")]
    assert STALE_AFTER < UNSEEN_HEARTBEATS
    assert kept.may(100.0 + UNSEEN_HEARTBEATS) == (True, True)


def test_a_request_that_ends_before_its_move_is_seen() -> None:
    kept = Kept()
    kept.put(HOME, 100.0, is_seen=False)
    kept.beat(is_served=False)
    assert kept.begin(100.5) == [dropped("its request does not run at a any more", HOME)]


def test_a_debtor_that_is_gone_carries_out_nothing() -> None:
    kept = Kept()
    kept.put(OUT, 100.0, is_seen=False)
    kept.ledger.forget("a")
    assert kept.begin(100.5) == [dropped("a is gone")]


def test_a_debtor_whose_moves_do_not_pay_has_pauses_that_double_until_one_does() -> None:
    kept, now = Kept(), 100.0
    wanted = FIRST_PAUSE_S
    for _ in range(10):
        kept.batch = {"a": 1, "b": 2}
        kept.beat()
        kept.put(OUT, now)
        kept.batch = {"a": 1, "b": 1}
        kept.beat()
        now += JUDGE_S
        kept.begin(now)
        assert not kept.plans.may_plan_for("a") and kept.plans.may_plan_for("b")
        kept.begin(now + 0.99 * wanted)
        assert not kept.plans.may_plan_for("a")
        now += wanted
        kept.begin(now)
        assert kept.plans.may_plan_for("a")
        wanted = min(LONGEST_PAUSE_S, 2 * wanted)
    kept.put(OUT, now)
    kept.batch["a"] = 9
    kept.beat()
    kept.put(OUT, now + JUDGE_S)
    kept.batch["a"] = 1
    kept.beat()
    kept.begin(now + 2 * JUDGE_S)
    kept.begin(now + 2 * JUDGE_S + FIRST_PAUSE_S)
    assert kept.plans.may_plan_for("a"), "it begins with the first pause again"


def test_a_creditor_that_is_gone_says_nothing_of_its_move() -> None:
    kept = Kept()
    kept.put(OUT, 0.0)
    kept.begin(0.5)
    kept.batch["a"] = 2
    kept.beat()
    kept.ledger.entries["b"].state = "dead"
    kept.ledger.forget("b")
    (judged,) = kept.begin(JUDGE_S)
    assert isinstance(judged, MoveJudged) and round(judged.achieved_tokens_per_s) == 100
    assert kept.plans.may_plan_for("a")


@pytest.mark.parametrize("order", ["bcd", "dcb"])
@pytest.mark.parametrize(("lost", "pauses"), [(0, False), (1, True)])
def test_the_moves_of_one_plan_are_judged_together(order: str, lost: int, pauses: bool) -> None:
    """Each doubled the pause, and the last one decided whether there was any."""
    kept = Kept()
    for name in "cd":
        kept.batch[name], kept.seqs[name] = 1, 0
        kept.ledger.add(Entry(make_member(name), 0.0, state="ready"))
        kept.tell(name, {}, False)
    kept.begin(100.0)
    for name in order:
        kept.plans.put(Move(request_id="r", debtor_id="a", creditor_id=name, num_blocks=2))
    for name in order:
        kept.batch[name] -= lost * (name == "c")
        kept.tell(name, {"r": 20}, False)
    kept.begin(101.0)
    assert len(kept.begin(100.0 + JUDGE_S)) == 3
    assert kept.plans.may_plan_for("a") is not pauses
    kept.begin(100.0 + JUDGE_S + FIRST_PAUSE_S)
    assert kept.plans.may_plan_for("a")


def test_what_is_remembered_is_bounded() -> None:
    kept = Kept()
    for number in range(MOST_KEPT + 100):
        kept.plans.put(Move(request_id=f"r{number}", debtor_id="a", creditor_id="b", num_blocks=1))
    kept.begin(0.1)
    assert kept.plans.may_leave("r0") and not kept.plans.may_leave(f"r{MOST_KEPT + 99}")
    for _ in range(UNSEEN_HEARTBEATS):
        kept.beat()
    assert len(kept.begin(200.0)) == MOST_UNSEEN
