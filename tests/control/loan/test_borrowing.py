"""Borrower: whom it asks for memory, in which order, and what becomes of answers that come late."""

from __future__ import annotations

from distkv.clock import ManualClock
from distkv.control.loan.borrowing import MAX_ROUNDS, QUERY_TIMEOUT_S, TRY_TIMEOUT_S, Borrow, Purpose
from distkv.control.request.block import Debt
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.wire.messages.common import ANY_EPOCH, Epoch
from distkv.wire.messages.to_gmanager import BorrowQuery, Refusal
from distkv.wire.messages.to_rmanager import Candidate, Creditors, Granted, Refused, Release, TryMoveKvcache
from tests.control.parts import add_sequence, issued, make_member, make_state

LEASE_S, MARGIN_S = 4.0, 0.5


class Asking:
    """One instance that borrows, and the answers it gets."""

    def __init__(self, peers: tuple[str, ...] = ("p", "q", "s")) -> None:
        self.clock = ManualClock(50.0)
        self.state: RManagerState = make_state(peers=peers)
        self.borrower = self.state.borrower
        self.seq: Sequence = add_sequence(self.state)

    def start(self, num_blocks: int, purpose: Purpose = Purpose.PLACE, exclude: tuple[str, ...] = ()) -> Borrow:
        return self.borrower.start(self.seq, purpose, num_blocks, self.clock.now(), exclude)

    def query(self) -> BorrowQuery:
        (query,) = issued(self.state, BorrowQuery)
        return query

    def asked(self) -> TryMoveKvcache:
        (ask,) = issued(self.state, TryMoveKvcache)
        return ask

    def candidates(self, borrow: Borrow, *candidates: tuple[str, int]) -> None:
        message = Creditors(borrow_id=borrow.borrow_id, candidates=tuple(Candidate(i, free) for i, free in candidates))
        self.borrower.on_creditors(message, self.clock.now())

    def grant(
        self, sender: str, ask: TryMoveKvcache, num_blocks: int, ttl_s: float = LEASE_S
    ) -> tuple[Sequence, Debt] | None:
        slots = tuple(range(num_blocks))
        granted = Granted(span_id=ask.span_id, epoch=Epoch(9, 1), slots=slots, ttl_s=ttl_s)
        return self.borrower.on_granted(sender, granted, self.clock.now())

    def refuse(self, sender: str, ask: TryMoveKvcache, free_blocks: int) -> None:
        refused = Refused(span_id=ask.span_id, reason="full", free_blocks=free_blocks)
        self.borrower.on_refused(sender, refused, self.clock.now())


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
    assert asking.borrower.tick(asking.clock.advance(QUERY_TIMEOUT_S - 0.01)) == []
    assert borrow.querying
    assert asking.borrower.tick(asking.clock.advance(0.02)) == []
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
    assert asking.borrower.tick(asking.clock.advance(TRY_TIMEOUT_S)) == ["p"]
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


def test_more_than_asked_for_is_not_used() -> None:
    asking = Asking()
    borrow = asking.start(2)
    asking.candidates(borrow, ("p", 9))
    asking.grant("p", asking.asked(), 5)
    assert borrow.granted == 2
