"""Who may go by a request that has waited for long, and for whom memory is kept."""

from __future__ import annotations

import math

import pytest

from distkv.control.schedule.admission.passing import EARMARK_S, MOST_COUNTED_S, TURN_S, Earmark, Earmarks, Passing
from distkv.control.schedule.admission.waiting import AGED_S

OURS, THEIRS, OTHERS = ("me", "own"), ("p", "r"), ("q", "r")
WAITED_S = AGED_S + 1.0


def keep(earmarks: Earmarks, request: tuple[str, str], waited_s: float, blocks: int, now: float) -> None:
    """It asks for so many, and has none."""
    earmarks.ask(request, b"its route", waited_s, blocks, 0, now)


def test_as_much_may_go_by_as_the_one_that_waits_needs() -> None:
    passing = Passing()
    passing.look("big", 10)
    assert passing.may_pass(10) and not passing.may_pass(11)
    passing.passed(6)
    passing.look("big", 10)
    assert passing.may_pass(4) and not passing.may_pass(5), "it is the same that waits"
    passing.look("next", 3)
    assert passing.may_pass(3) and not passing.may_pass(4)


def test_memory_is_kept_for_one_that_has_waited_for_long_and_from_younger_ones() -> None:
    earmarks = Earmarks()
    keep(earmarks, THEIRS, AGED_S - 0.1, 5, 100.0)
    assert earmarks.kept_from(OURS, 100.0, 100.0) == 0 and earmarks.next_deadline() == math.inf
    keep(earmarks, THEIRS, WAITED_S, 5, 100.0)
    assert earmarks.kept_from(OURS, 100.0, 100.0) == 5
    assert earmarks.kept_from(OURS, 100.0 - WAITED_S - 1.0, 100.0) == 0, "ours has waited longer"
    assert earmarks.kept_from(THEIRS, 100.0, 100.0) == 0
    assert earmarks.kept_from(OTHERS, 100.0, 100.0) == 5, "another's request of the same name"
    assert earmarks.next_deadline() == 100.0 + EARMARK_S
    assert earmarks.kept_from(OURS, 100.0, 100.0 + EARMARK_S) == 0


def test_who_has_waited_longest_has_the_earmark_until_it_has_the_memory() -> None:
    earmarks = Earmarks()
    keep(earmarks, THEIRS, WAITED_S, 5, 100.0)
    keep(earmarks, OTHERS, WAITED_S - 0.5, 7, 100.0)
    assert earmarks.kept_from(OURS, 100.0, 100.0) == 5
    keep(earmarks, OTHERS, WAITED_S + 1.0, 7, 100.0)
    assert earmarks.kept_from(OURS, 100.0, 100.0) == 7
    keep(earmarks, OTHERS, WAITED_S + 1.0, 0, 100.1)
    assert earmarks.kept_from(OURS, 100.0, 100.1) == 0 and earmarks.next_deadline() == math.inf


def asked_for(
    earmarks: Earmarks, seconds: float, waited_s: float = 1e9, *, new_names: bool = False, ours_s: float = 0.0
) -> float:
    """Seconds for which a peer that asks ten times a second, and never has enough, keeps memory from others."""
    kept = 0
    for moment in range(round(10 * seconds)):
        now = 100.0 + moment / 10
        keep(earmarks, ("liar", f"r{moment if new_names else 0}"), waited_s, 50, now)
        kept += earmarks.kept_from(OURS, now - ours_s, now) > 0
    return kept / 10


@pytest.mark.parametrize("ours_s", [0.0, 600.0])
@pytest.mark.parametrize("new_names", [False, True])
def test_a_peer_that_says_anything_keeps_memory_from_others_half_of_the_time_at_most(
    new_names: bool, ours_s: float
) -> None:
    assert asked_for(Earmarks(), TURN_S) == pytest.approx(TURN_S)
    assert asked_for(Earmarks(), 20 * TURN_S, new_names=new_names, ours_s=ours_s) <= 0.51 * 20 * TURN_S


@pytest.mark.parametrize("waited_s", [WAITED_S, 60.0, 1200.0])
def test_it_is_the_same_one_whichever_of_them_asks_first(waited_s: float) -> None:
    """All creditors must keep memory for the same request, or it has it from none."""
    for order in ((THEIRS, OTHERS), (OTHERS, THEIRS)):
        earmarks = Earmarks()
        for request in order:
            keep(earmarks, request, waited_s + (1.0 if request is OTHERS else 0.0), 5, 100.0)
        assert earmarks.kept_from(THEIRS, 100.0 - waited_s, 100.0) == 5
        assert earmarks.kept_from(OTHERS, 99.0 - waited_s, 100.0) == 0


def test_it_keeps_nothing_from_a_request_that_has_waited_for_an_hour() -> None:
    earmarks = Earmarks()
    keep(earmarks, THEIRS, 1e9, 50, 100.0)
    assert earmarks.kept_from(OURS, 100.0 - MOST_COUNTED_S, 100.0) == 0


def test_another_has_its_turn_while_the_first_must_leave_it() -> None:
    earmarks = Earmarks()
    asked_for(earmarks, TURN_S + 1.0)
    now = 101.0 + TURN_S
    keep(earmarks, OTHERS, WAITED_S, 7, now)
    keep(earmarks, ("liar", "again"), 1e9, 50, now)
    keep(earmarks, ("liar", "again"), 1e9, 0, now)
    assert earmarks.kept_from(OURS, now, now) == 7


def test_its_request_hears_once_that_as_much_is_free_as_is_kept() -> None:
    earmarks, lendable = Earmarks(), {THEIRS: 4, OTHERS: 99}

    def told(now: float = 100.0) -> Earmark | None:
        return earmarks.take_vacant(lambda *request: lendable[request], now)

    assert told() is None
    keep(earmarks, THEIRS, WAITED_S, 5, 100.0)
    assert told() is None, "too little for it, whatever others could have"
    lendable[THEIRS] = 5
    earmark = told()
    assert earmark is not None and (earmark.request, earmark.route) == (THEIRS, b"its route")
    assert told() is None
    keep(earmarks, THEIRS, WAITED_S, 5, 100.0)
    assert told(100.0 + EARMARK_S) is None, "nothing is kept any more"
    keep(earmarks, THEIRS, WAITED_S, 5, 100.0)
    assert told() is not None, "it has asked again"
