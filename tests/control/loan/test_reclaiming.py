"""Which loans a creditor takes back: as many blocks as needed, those first that cost least."""

from __future__ import annotations

import pytest

from distkv.control.loan.creditor.reclaiming import Lent, choose, choose_served


def lent(span_id: str, kept: int, filled: int, granted_at: float = 0.0) -> Lent:
    return Lent(span_id, kept, filled, granted_at)


def test_no_more_than_is_needed_and_no_more_than_may_be_at_a_time() -> None:
    loans = [lent("a", 10, 10)]
    assert choose(loans, 3, 64) == [("a", 7)]
    assert choose(loans, 30, 64) == [("a", 0)]
    assert choose(loans, 30, 4) == [("a", 6)]
    assert choose(loans, 0, 64) == choose(loans, 3, 0) == choose([], 3, 64) == choose([lent("a", 0, 0)], 3, 64) == []


@pytest.mark.parametrize(
    ("loans", "needed", "chosen"),
    [
        ([lent("full", 4, 4), lent("empty", 4, 0)], 3, [("empty", 1)]),
        ([lent("full", 4, 4), lent("half", 4, 2)], 6, [("half", 0), ("full", 2)]),
        ([lent("small", 2, 2), lent("large", 9, 9)], 5, [("large", 4)]),
        ([lent("new", 4, 4, 9.0), lent("old", 4, 4, 1.0)], 4, [("old", 0)]),
    ],
)
def test_those_that_hold_nothing_then_the_largest_then_the_oldest(
    loans: list[Lent], needed: int, chosen: list[tuple[str, int]]
) -> None:
    assert choose(loans, needed, 64) == chosen


def test_what_its_debtor_could_hold_goes_home_first() -> None:
    loans = [lent("needed", 8, 0), Lent("avoidable", 2, 2, 0.0, is_avoidable=True)]
    assert choose(loans, 3, 64) == [("avoidable", 0), ("needed", 7)]


def served(span_id: str, filled: int, granted_at: float, debtor: str, room: int) -> Lent:
    """With two more that hold nothing."""
    return Lent(span_id, filled + 2, filled, granted_at, debtor_id=debtor, room=room)


def test_of_what_is_served_the_youngest_go_as_far_as_their_debtors_have_room() -> None:
    loans = [served("old", 9, 1.0, "p", 12), served("young", 9, 2.0, "p", 12), served("other", 9, 1.5, "q", 2)]
    assert choose_served(loans, 5, 0) == [("young", 4)]
    assert choose_served(loans, 100, 0) == [("young", 0), ("other", 7), ("old", 6)]
    assert choose_served(loans, 100, 4) == [("young", 0), ("other", 3), ("old", 6)]
    assert choose_served(loans, 100, 100) == [("young", 0), ("other", 0), ("old", 0)]
    assert choose_served(loans, 0, 100) == choose_served([served("none", 0, 1.0, "p", 9)], 5, 5) == []
