"""Candidates: whom a debtor asks while no gManager recommends anybody."""

from __future__ import annotations

from random import Random

import pytest

from distkv.control.loan.debtor.borrow import Borrow, Purpose
from distkv.control.loan.debtor.candidates import MAX_CACHED, Candidates
from distkv.control.loan.debtor.paths import PathBook
from distkv.control.rmanager.peers.member_table import MemberTable
from distkv.control.serving.creditor_limits import CreditorLimits
from distkv.wire.messages.common import Member
from distkv.wire.messages.to_rmanager import Candidate
from tests.control.parts import add_sequence, lend, make_member, make_state


class CountingTable(MemberTable):
    """How many members were looked at."""

    looked_at = 0

    def creditors(self, start: int, stop: int) -> list[Member]:
        found = super().creditors(start, stop)
        self.looked_at += len(found)
        return found


def cached(table: MemberTable, num_blocks: int, seed: int = 0) -> list[Candidate]:
    borrow = Borrow("b", add_sequence(make_state()), Purpose.PLACE, num_blocks, frozenset())
    return Candidates("me", table, PathBook(Random(0)), CreditorLimits(), Random(seed)).cached(borrow)


def table_of(*free_blocks: int) -> CountingTable:
    table = CountingTable()
    for number, free in enumerate(free_blocks):
        table[f"i{number}"] = make_member(f"i{number}", free_blocks=free)
    return table


def test_those_that_have_enough_come_first_in_any_order_then_the_others_most_first() -> None:
    table = table_of(3, 9, 1, 8, 7)
    orders = {tuple(one.instance_id for one in cached(table, 7, seed)) for seed in range(40)}
    assert {frozenset(order[:3]) for order in orders} == {frozenset({"i1", "i3", "i4"})} and len(orders) == 6
    assert {order[3:] for order in orders} == {("i0", "i2")}


@pytest.mark.parametrize("num_members", [10, 1_000, 10_000])
def test_it_costs_the_same_however_many_members_there_are(num_members: int) -> None:
    """It sorted all of them, each time that no gManager answered."""
    table = table_of(*(number % 8 for number in range(num_members)))
    found = cached(table, 4)
    assert len(found) == table.looked_at <= 2 * MAX_CACHED
    has_enough = [one.free_blocks >= 4 for one in found]
    assert has_enough == sorted(has_enough, reverse=True) and sum(has_enough) >= min(MAX_CACHED, num_members // 3)


def test_who_is_waited_for_anyway_and_has_enough_is_asked_first() -> None:
    """Each creditor costs every step a wait per layer."""
    borrow = Borrow("b", add_sequence(make_state()), Purpose.PLACE, 4, frozenset())
    candidates = Candidates("me", table_of(9, 6, 3), PathBook(Random(0)), CreditorLimits(), Random(0), {"i1", "i2"})
    recommended = [Candidate("i0", 9), Candidate("i1", 6), Candidate("i2", 3)]
    assert [one.instance_id for one in candidates.in_order(borrow, recommended)] == ["i1", "i0", "i2"]


@pytest.mark.parametrize(
    ("purpose", "is_avoidable", "asked"),
    [
        (Purpose.RELIEVE, False, ["i0", "i1"]),
        (Purpose.RELIEVE, True, ["i0"]),
        (Purpose.PLACE, False, ["i0", "i1"]),
        (Purpose.RECLAIM, False, ["i0"]),
    ],
)
def test_what_only_others_can_hold_also_asks_its_creditors_for_what_it_grows_by(
    purpose: Purpose, is_avoidable: bool, asked: list[str]
) -> None:
    """They lend it that though they lend nothing to anybody else, so no gManager recommends them."""
    seq = add_sequence(make_state(), num_tokens=40)
    seq.placement.cover(40)
    lend(seq, "i1", 2)
    borrow = Borrow("b", seq, purpose, 4, frozenset(), is_avoidable=is_avoidable)
    candidates = Candidates("me", table_of(9, 6, 3), PathBook(Random(0)), CreditorLimits(), Random(0), {"i1"})
    assert [one.instance_id for one in candidates.in_order(borrow, [Candidate("i0", 9)])] == asked


@pytest.mark.parametrize(("purpose", "is_avoidable"), [(Purpose.RELIEVE, True), (Purpose.RECLAIM, False)])
def test_a_creditor_that_drains_is_asked_last_and_only_for_what_a_request_there_grows_by(
    purpose: Purpose, is_avoidable: bool
) -> None:
    seq = add_sequence(make_state(), num_tokens=40)
    seq.placement.cover(40)
    lend(seq, "i0", 2)
    table = table_of(9, 6, 3)
    table["i0"], table["i2"] = make_member("i0", state="draining"), make_member("i2", state="draining")
    candidates = Candidates("me", table, PathBook(Random(0)), CreditorLimits(), Random(0), {"i0"})
    recommended = [Candidate(name, 9) for name in ("i0", "i1", "i2")]

    def asked(borrow: Borrow) -> list[str]:
        return [one.instance_id for one in candidates.in_order(borrow, recommended)]

    assert asked(Borrow("b", seq, Purpose.RELIEVE, 4, frozenset())) == ["i1", "i0"]
    assert asked(Borrow("c", seq, purpose, 4, frozenset(), is_avoidable=is_avoidable)) == ["i1"]
