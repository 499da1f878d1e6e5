"""Borrower: whom it asks for memory, in which order, and what becomes of answers that come late."""

from __future__ import annotations

import math
import sys
from functools import partial

import msgspec

from distkv.control.loan.debtor.borrow import Borrow, Purpose
from distkv.control.loan.debtor.borrowing import (
    MAX_ROUNDS,
    QUERY_TIMEOUT_S,
    TRY_TIMEOUT_S,
)
from distkv.control.loan.debtor.paths import Path
from distkv.wire.messages.common import ANY_EPOCH
from distkv.wire.messages.to_gmanager import MAX_NAMES, BorrowQuery, Refusal
from distkv.wire.messages.to_rmanager import Candidate, Creditors, Refused, Release, TryMoveKvcache
from tests.control.loan.asking import LEASE_S, MARGIN_S, Asking, asking_for
from tests.control.parts import add_sequence, calls, issued, make_member


def test_candidates_are_asked_in_turn_until_all_is_granted() -> None:
    asking = Asking()
    borrow = asking.start(5)
    assert asking.query().num_blocks == 5
    asking.candidates(borrow, ("q", 9), ("p", 3))
    first = asking.asked()
    assert (first.num_blocks, first.debtor_id, first.debtor_incarnation, first.ttl_s) == (5, "me", 7, LEASE_S)
    assert asking.grant("q", first, 3)
    second = asking.asked()
    assert second.num_blocks == 2 and second.span_id != first.span_id
    assert asking.grant("p", second, 2)
    assert asking.borrower.active == {} and list(asking.borrower.finished) == [borrow]
    assert [(debt.creditor_id, debt.capacity) for debt in borrow.grants] == [("q", 3), ("p", 2)]


def test_a_lease_counts_from_the_asking_less_a_margin() -> None:
    asking = Asking()
    borrow = asking.start(1)
    asking.candidates(borrow, ("p", 1))
    ask = asking.asked()
    sent_at = asking.clock.now()
    asking.clock.advance(0.7)
    asking.grant("p", ask, 1, ttl_s=3.0)
    assert borrow.grants[0].valid_until == sent_at + 3.0 - MARGIN_S


def test_refusals_are_told_in_the_next_query_and_who_is_empty_is_not_asked_again() -> None:
    asking = Asking()
    borrow = asking.start(4, exclude=("s",))
    assert asking.query().exclude == ("s",)
    asking.candidates(borrow, ("p", 9), ("q", 9), ("s", 9))
    asking.refuse("p", asking.asked(), 0)
    asking.refuse("q", asking.asked(), 2)
    assert asking.query().refusals == (Refusal("p", 0), Refusal("q", 2))
    asking.candidates(borrow, ("p", 9), ("q", 2))
    assert asking.state.counters.refusals == 2
    assert borrow.trying == "q"
    asking.refuse("q", asking.asked(), 0)
    assert asking.query().num_blocks == 4
    asking.candidates(borrow, ("p", 9), ("q", 9))
    assert list(asking.borrower.finished) == [borrow] and borrow.grants == []


def test_it_gives_up_after_some_rounds() -> None:
    asking = Asking()
    borrow = asking.start(4)
    for _ in range(MAX_ROUNDS):
        asking.query()
        asking.candidates(borrow, ("p", 1))
        asking.refuse("p", asking.asked(), 1)
    assert list(asking.borrower.finished) == [borrow]


def test_some_help_is_enough_to_make_room_but_not_to_place() -> None:
    for purpose, ends in ((Purpose.RELIEVE, True), (Purpose.RECLAIM, True), (Purpose.PLACE, False)):
        asking = Asking()
        borrow = asking.start(4, purpose)
        asking.candidates(borrow, ("p", 2))
        asking.grant("p", asking.asked(), 2)
        assert bool(asking.borrower.finished) is ends
        assert bool(issued(asking.state, BorrowQuery)) is not ends


def test_without_a_gmanager_the_cached_members_are_asked_most_free_first() -> None:
    asking = Asking(peers=())
    for name, free in (("p", 2), ("q", 7)):
        asking.state.members[name] = make_member(name, free_blocks=free)
    borrow = asking.start(3)
    assert asking.borrower.tick(asking.clock.advance(QUERY_TIMEOUT_S - 0.01)) == ([], [])
    assert borrow.querying
    assert asking.borrower.tick(asking.clock.advance(0.02)) == ([], [])
    assert borrow.trying == "q"
    asking.candidates(borrow, ("p", 9))
    assert borrow.trying == "q", "an answer that comes late changes nothing"


def test_unknown_candidates_are_not_asked() -> None:
    asking = Asking(peers=("p",))
    borrow = asking.start(1)
    asking.candidates(borrow, ("stranger", 9))
    assert list(asking.borrower.finished) == [borrow]
    assert issued(asking.state, TryMoveKvcache) == []


def test_who_does_not_answer_is_told_that_nothing_is_wanted_any_more() -> None:
    asking = Asking()
    borrow = asking.start(2)
    asking.candidates(borrow, ("p", 9), ("q", 9))
    ask = asking.asked()
    assert asking.borrower.tick(asking.clock.advance(TRY_TIMEOUT_S)) == (["p"], [])
    (release,) = issued(asking.state, Release)
    assert (release.span.span_id, release.span.epoch) == (ask.span_id, ANY_EPOCH)
    assert borrow.trying == "q"
    assert not asking.grant("p", ask, 2), "nobody waits for this grant any more"
    assert borrow.grants == []


def test_a_cancelled_borrow_gives_back_what_it_has_and_what_it_may_get() -> None:
    asking = Asking()
    borrow = asking.start(4)
    asking.candidates(borrow, ("p", 9), ("q", 9))
    asking.grant("p", asking.asked(), 2)
    ask = asking.asked()
    assert asking.borrower.of(asking.seq) is borrow
    assert asking.borrower.of(asking.seq, Purpose.RELIEVE) is None
    assert [debt.creditor_id for debt in asking.borrower.cancel(asking.seq)] == ["p"]
    (release,) = issued(asking.state, Release)
    assert release.span.span_id == ask.span_id
    assert asking.borrower.of(asking.seq) is None
    assert not asking.grant("q", ask, 2)


def test_what_a_dead_peer_granted_is_gone_also_when_the_borrow_is_over() -> None:
    asking = Asking()
    borrow = asking.start(4)
    asking.candidates(borrow, ("p", 9), ("q", 9), ("s", 9))
    asking.grant("p", asking.asked(), 2)
    asking.asked()
    asking.borrower.on_peer_lost("q", asking.clock.now())
    assert borrow.trying == "s"
    asking.grant("s", asking.asked(), 2)
    assert list(asking.borrower.finished) == [borrow]
    asking.borrower.on_peer_lost("p", asking.clock.now())
    assert [debt.creditor_id for debt in borrow.grants] == ["s"]


# --- paths


def test_whom_a_path_failed_comes_last_and_not_at_all_while_it_is_in_doubt() -> None:
    asking = Asking()
    for path in (Path("me", "p"), Path("q", "me")):
        asking.state.paths.failed(path, "no route", asking.clock.now())
    borrow = asking.start(2)
    assert asking.query().suspects == ("p", "q")
    asking.candidates(borrow, ("p", 9), ("q", 9), ("s", 9))
    assert (borrow.trying, borrow.candidates) == ("s", [])
    asking.state.paths.tick(asking.clock.advance(5.0))
    again = asking.start(2)
    asking.candidates(again, ("p", 9), ("q", 9), ("s", 9))
    assert again.trying == "s" and [one.instance_id for one in again.candidates] == ["p", "q"]
    asking.state.paths.failed(Path("s", "p"), "no route", asking.clock.now())
    leaving = asking.start(2, Purpose.RECLAIM, exclude=("p",))
    asking.candidates(leaving, ("s", 9), ("q", 9))
    assert leaving.trying == "q", "s cannot pull from p, where the blocks lie"


def test_while_no_gmanager_answers_debtors_do_not_all_take_the_same() -> None:
    first: set[str] = set()
    for number in range(20):
        asking = Asking(peers=())
        asking.borrower._candidates._entropy.seed(number)
        for name, free in (("p", 9), ("q", 8), ("s", 8), ("t", 1)):
            asking.state.members[name] = make_member(name, free_blocks=free)
        borrow = asking.start(3)
        asking.borrower.tick(asking.clock.advance(QUERY_TIMEOUT_S))
        first.add(borrow.trying)
        assert borrow.candidates[-1].instance_id == "t"
    assert first == {"p", "q", "s"}


def test_each_wait_has_its_deadline_and_none_is_left() -> None:
    asking = Asking(peers=("p", "q"))
    borrow = asking.start(2)
    assert asking.borrower.next_deadline() == asking.clock.now() + QUERY_TIMEOUT_S
    asking.candidates(borrow, ("p", 9), ("q", 9))
    assert asking.borrower.next_deadline() == asking.clock.now() + TRY_TIMEOUT_S
    asking.borrower.tick(asking.clock.advance(TRY_TIMEOUT_S))
    assert asking.borrower.next_deadline() == asking.clock.now() + TRY_TIMEOUT_S
    asking.borrower.validate()
    asking.borrower.cancel(asking.seq)
    assert asking.borrower.next_deadline() == math.inf
    asking.borrower.validate()


def test_an_event_costs_the_same_however_many_borrow() -> None:
    """Counted in calls, so that no clock decides."""
    costs = []
    for others in (10, 1000):
        asking = Asking()
        for number in range(others):
            other = asking.borrower.start(add_sequence(asking.state, f"x{number}"), Purpose.RECLAIM, 1, 0.0)
            asking.candidates(other, ("p", 9))
        borrow = asking.start(2, Purpose.RELIEVE)
        asking.candidates(borrow, ("q", 9))
        ask = asking_for(borrow)
        asking.borrower.tick(asking.clock.now())  # drops timers that were set anew
        calls = 0

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(count)
        try:
            asking.borrower.is_borrowing(Purpose.PLACE)
            asking.borrower.of(asking.seq, Purpose.RELIEVE)
            asking.borrower.tick(asking.clock.now())
            asking.grant("q", ask, 2)
        finally:
            sys.setprofile(None)
        costs.append(calls)
    assert costs[1] <= costs[0] + 5


def test_a_query_names_no_more_than_it_may_of_all_that_refused_and_the_borrow_ends_all_the_same() -> None:
    """The gManager took a longer one for malformed, and dropped the connection of the instance."""
    names = [f"p{number:04}" for number in range(MAX_NAMES + 6)]
    asking = Asking(peers=tuple(names))
    borrow = asking.start(10**6, exclude=tuple(f"x{number}" for number in range(MAX_NAMES + 1)))
    assert len(asking.query().exclude) == MAX_NAMES
    for name in names:
        asking.candidates(borrow, (name, 2))
        asking.grant(name, asking.asked(), 1)
    query = asking.query()
    assert query.refusals == tuple(Refusal(name, 0) for name in names[6:]), "those it heard last"
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(query), type=BorrowQuery) == query
    assert borrow.granted == len(names)
    asking.candidates(borrow, *((name, 9) for name in names[:3]))
    assert list(asking.borrower.finished) == [borrow], "who had nothing is not asked again, told of or not"
    asking.borrower.validate()


def test_who_refuses_again_is_among_those_heard_last() -> None:
    borrow = Borrow("b", Asking().seq, Purpose.PLACE, 9, frozenset())
    for name, free in (("p", 3), ("q", 0), ("s", 0), ("p", 1)):
        borrow.note_refusal(name, free)
    assert borrow.newest_refusals(2) == (Refusal("p", 1), Refusal("s", 0))


def test_an_answer_costs_the_same_however_much_a_borrow_has_collected() -> None:
    costs = []
    for num_creditors in (10, 500):
        names = [f"p{number:04}" for number in range(num_creditors)]
        asking = Asking(peers=tuple(names))
        borrow = asking.start(10**6)
        asking.candidates(borrow, *((name, 2) for name in names))
        counted = [calls(partial(asking.grant, name, asking_for(borrow), 1)) for name in names[:-1]]
        costs.append(sorted(counted[-9:])[4])
    assert costs[1] <= costs[0] + 5, costs


def test_more_than_asked_for_is_not_used() -> None:
    asking = Asking()
    borrow = asking.start(2)
    asking.candidates(borrow, ("p", 9))
    asking.grant("p", asking.asked(), 5)
    assert borrow.granted == 2


def test_who_lends_to_nobody_that_could_wait_is_not_asked_again_and_others_learn_what_it_has() -> None:
    asking = Asking()
    borrow = asking.borrower.start(asking.seq, Purpose.PLACE, 2, asking.clock.now(), is_avoidable=True)
    answer = Creditors(borrow_id=borrow.borrow_id, candidates=(Candidate("p", 8),))
    asking.borrower.on_creditors(answer, asking.clock.now())
    ask = asking.asked()
    assert ask.is_avoidable
    refused = Refused(span_id=ask.span_id, reason="requests wait", free_blocks=8, is_kept=True)
    asking.state.commands.clear()
    asking.borrower.on_refused("p", refused, asking.clock.now())
    query = asking.query()
    assert query.refusals == (Refusal("p", 8),) and "p" in query.suspects
    asking.borrower.on_creditors(answer, asking.clock.now())
    assert borrow.borrow_id not in asking.borrower.active and not borrow.grants
