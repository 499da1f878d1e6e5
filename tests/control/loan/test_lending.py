"""LoanBook: what a creditor lends, to whom, and for how long."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from distkv.clock import ManualClock
from distkv.control.blocks import BlockPool, SlotState
from distkv.control.loan.creditor import lending
from distkv.control.loan.creditor.lending import Loan, LoanBook
from distkv.wire.messages.common import Epoch, SpanRef
from distkv.wire.messages.to_gmanager import Debtor
from distkv.wire.messages.to_rmanager import BlocksReady, Granted, ReadyBlock, Refused, TryMoveKvcache
from tests.examples import examples

LEASE_S = 4.0


def ask(span_id: str = "s", num_blocks: int = 3, debtor: str = "d", **fields: Any) -> TryMoveKvcache:
    fields = {"request_id": "r", "debtor_incarnation": 1, "ttl_s": LEASE_S} | fields
    return TryMoveKvcache(span_id=span_id, debtor_id=debtor, num_blocks=num_blocks, **fields)


def ready(span: SpanRef, index: int, count: int, first_slot: int = 0) -> BlocksReady:
    blocks = tuple(ReadyBlock(first_slot + i, 77) for i in range(count))
    return BlocksReady(span=span, index=index, source_id="d", source_incarnation=1, blocks=blocks)


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(8)


@pytest.fixture
def book(pool: BlockPool) -> LoanBook:
    return LoanBook(pool, incarnation=3, max_lease_s=LEASE_S)


def grant(book: LoanBook, request: TryMoveKvcache, lendable: int = 8, now: float = 0.0) -> Loan:
    answer, is_new = book.try_grant(b"d", request, lendable, now)
    assert isinstance(answer, Granted) and is_new
    return book.loans[request.span_id]


def test_first_come_first_served_up_to_what_is_lendable(book: LoanBook, pool: BlockPool) -> None:
    first, _ = book.try_grant(b"d", ask("a", 3), 5, 0.0)
    second, _ = book.try_grant(b"d", ask("b", 3), 2, 0.0)
    third, _ = book.try_grant(b"d", ask("c", 1), 0, 0.0)
    assert isinstance(first, Granted) and first.slots == (0, 1, 2)
    assert isinstance(second, Granted) and second.slots == (3, 4)
    assert third == Refused(span_id="c", reason="nothing to lend", free_blocks=0)
    assert pool.count(SlotState.RESERVED) == 5 == book.num_blocks
    assert book.debtors() == (Debtor("d", 5),)


def test_a_grant_has_no_more_slots_than_a_message_may(
    book: LoanBook, pool: BlockPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lending, "MAX_GRANTED_BLOCKS", 2)
    assert grant(book, ask("a", 3)).slots == (0, 1) and pool.num_free == 6
    assert grant(book, ask("b", 1)).slots == (2,)


def test_asking_twice_grants_once(book: LoanBook, pool: BlockPool) -> None:
    first, _ = book.try_grant(b"d", ask(num_blocks=3), 8, 0.0)
    again, is_new = book.try_grant(b"d", ask(num_blocks=3), 8, 1.0)
    assert isinstance(first, Granted) and isinstance(again, Granted)
    assert (again.slots, again.epoch, is_new) == (first.slots, first.epoch, False)
    assert again.ttl_s == LEASE_S - 1.0
    assert pool.num_free == 5


def test_a_span_belongs_to_its_debtor_and_ends_once(book: LoanBook) -> None:
    loan = grant(book, ask())
    foreign, _ = book.try_grant(b"x", ask(debtor="x"), 5, 0.0)
    assert isinstance(foreign, Refused) and "another debtor" in foreign.reason
    assert book.renew((loan.span,), b"x", LEASE_S, 1.0) == (loan.span,)
    assert book.revoke(loan, tell_debtor=False) and not book.revoke(loan, tell_debtor=True)
    ending, _ = book.try_grant(b"d", ask(), 5, 0.0)
    assert isinstance(ending, Refused) and "revoked" in ending.reason
    assert book.renew((loan.span,), b"d", LEASE_S, 1.0) == (loan.span,)
    ended = book.revoked(loan.span)
    assert ended is loan and ended.tell_debtor
    assert book.revoked(loan.span) is None


def test_a_new_life_of_a_span_is_not_the_old_one(book: LoanBook) -> None:
    old = grant(book, ask())
    book.revoke(old, tell_debtor=False)
    book.revoked(old.span)
    new = grant(book, ask())
    assert new.span.epoch == Epoch(3, 2) != old.span.epoch
    assert book.get(old.span) is None and book.get(new.span) is new
    assert book.renew((old.span, new.span), b"d", LEASE_S, 1.0) == (old.span,)
    assert book.start_pull(ready(old.span, 0, 1)) == "no such span in this epoch"
    assert book.revoked(old.span) is None and book.get(new.span) is new


def test_pulls_come_in_order_and_count_when_verified(book: LoanBook, pool: BlockPool) -> None:
    loan = grant(book, ask(num_blocks=4))
    assert "expected blocks from position 0 on" in str(book.start_pull(ready(loan.span, 1, 1)))
    assert "do not fit" in str(book.start_pull(ready(loan.span, 0, 5)))
    assert isinstance(book.start_pull(ready(loan.span, 0, 0)), str)
    assert book.start_pull(ready(loan.span, 0, 2)) == (loan, loan.slots[:2])
    assert "still being read" in str(book.start_pull(ready(loan.span, 0, 1)))
    book.end_pull(loan, ok=False)
    assert (loan.filled, pool.count(SlotState.LENT)) == (0, 0)
    assert book.start_pull(ready(loan.span, 0, 2)) == (loan, loan.slots[:2])
    book.end_pull(loan, ok=True)
    assert (loan.filled, pool.count(SlotState.LENT), pool.count(SlotState.RESERVED)) == (2, 2, 2)
    assert book.start_pull(ready(loan.span, 2, 2)) == (loan, loan.slots[2:])
    book.validate()


def test_an_expose_that_is_asked_again_is_not_pulled_again(book: LoanBook) -> None:
    loan = grant(book, ask(num_blocks=4))
    first = ready(loan.span, 0, 2)
    assert not book.is_reading(first) and book.answer_again(first) is None
    book.start_pull(first)
    assert book.is_reading(first) and not book.is_reading(ready(loan.span, 0, 1))
    assert book.answer_again(first) is None
    book.end_pull(loan, ok=True)
    again = book.answer_again(first)
    assert again is not None and (again.index, again.num_blocks, again.problem) == (0, 2, "")
    assert book.answer_again(ready(loan.span, 0, 2, first_slot=5)) is None
    failed = ready(loan.span, 2, 1)
    book.start_pull(failed)
    book.end_pull(loan, ok=False)
    assert book.answer_again(failed) is None and not book.is_reading(failed)


def test_leases_are_counted_from_receipt_and_never_longer_than_allowed(book: LoanBook) -> None:
    clock = ManualClock(10.0)
    short = grant(book, ask("a", 1, ttl_s=1.0), now=clock.now())
    long = grant(book, ask("b", 1, ttl_s=99.0), now=clock.now())
    assert (short.expires_at, long.expires_at) == (11.0, 14.0)
    assert book.next_deadline() == 11.0 and book.expired(clock.advance(0.5)) == []
    assert book.renew((short.span, long.span), b"d", 99.0, clock.now()) == ()
    assert book.expired(clock.advance(LEASE_S - 0.01)) == []
    assert book.next_deadline() == 10.5 + LEASE_S
    book.revoke(short, tell_debtor=False)
    assert book.expired(clock.advance(0.02)) == [long]
    assert book.expired(clock.now()) == [], "each once"


def test_positions_come_back_one_by_one(book: LoanBook, pool: BlockPool) -> None:
    loan = grant(book, ask(num_blocks=5))
    book.start_pull(ready(loan.span, 0, 3))
    book.end_pull(loan, ok=True)
    assert book.close(loan, (1, 4, 4, 99)) == (1, 4), "what the span has, once"
    assert book.close(loan, (1, 2)) == (2,)
    assert (loan.num_blocks, loan.num_kept, pool.num_free) == (5, 2, 3)
    assert book.revoked(loan.span, (1, 3)) is loan, "3 was not to come back"
    assert (loan.returned, loan.closing, pool.num_free) == ({1}, {2, 4}, 4)
    assert (pool.count(SlotState.LENT), pool.count(SlotState.RESERVED)) == (2, 2)
    assert book.debtors() == (Debtor("d", 4),) and book.by_request() == {"r": 4} and book.num_blocks == 4
    assert book.start_pull(ready(loan.span, 3, 2)) == "some of these positions were given back"
    assert book.start_pull(ready(loan.span, 3, 1)) == (loan, loan.slots[3:4])
    book.validate()
    book.end_pull(loan, ok=True)
    book.validate()
    book.revoke(loan, tell_debtor=True)
    assert book.revoked(loan.span) is loan and pool.num_free == 8
    book.validate()


def test_what_a_debtor_was_lent_is_found_by_its_name_until_it_goes_back(book: LoanBook) -> None:
    old = grant(book, ask("a", 1, debtor_incarnation=1))
    new = grant(book, ask("b", 1, debtor_incarnation=2))
    other = grant(book, ask("c", 1, debtor="x"))
    assert book.of_debtor("d") == [old, new]
    assert book.of_debtor("x") == [other]
    book.revoke(old, tell_debtor=False)
    assert book.of_debtor("d") == [new]
    book.validate()


class Lending(RuleBasedStateMachine):
    """Random calls, as a creditor and its worker make them, against a model of who holds what until when."""

    @initialize(cap=st.integers(1, 12))
    def start(self, cap: int) -> None:
        self.clock = ManualClock(100.0)
        self.pool = BlockPool(12)
        self.book = LoanBook(self.pool, 1, LEASE_S)
        self.cap = cap
        self.deadlines: dict[str, float] = {}

    def loan(self, data: st.DataObject) -> Loan:
        return self.book.loans[data.draw(st.sampled_from(sorted(self.book.loans)))]

    @rule(number=st.integers(0, 5), blocks=st.integers(0, 8), debtor=st.sampled_from("xyz"), ttl_s=st.floats(0, 9))
    def ask(self, number: int, blocks: int, debtor: str, ttl_s: float) -> None:
        lendable = max(0, min(self.pool.num_free, self.cap - self.book.num_blocks))
        span_id, free = f"s{number}", self.pool.num_free
        known = self.book.loans.get(span_id)
        answer, is_new = self.book.try_grant(
            debtor.encode(), ask(span_id, blocks, debtor, ttl_s=ttl_s), lendable, self.clock.now()
        )
        if is_new:
            assert known is None and isinstance(answer, Granted)
            assert len(answer.slots) == min(blocks, lendable) > 0
            self.deadlines[span_id] = self.clock.now() + min(ttl_s, LEASE_S)
        else:
            assert self.pool.num_free == free

    @precondition(lambda self: self.book.loans)
    @rule(data=st.data(), offset=st.integers(-1, 1), count=st.integers(0, 4))
    def pull(self, data: st.DataObject, offset: int, count: int) -> None:
        loan = self.loan(data)
        index = max(0, loan.filled + offset)
        started = self.book.start_pull(ready(loan.span, index, count))
        fits = index == loan.filled and 0 < count <= len(loan.slots) - index
        assert isinstance(started, str) or (fits and not loan.revoking)

    @precondition(lambda self: any(loan.pulling for loan in self.book.loans.values()))
    @rule(data=st.data(), ok=st.booleans())
    def pulled(self, data: st.DataObject, ok: bool) -> None:
        loan = data.draw(st.sampled_from([loan for loan in self.book.loans.values() if loan.pulling]))
        before, count = loan.filled, loan.pulling
        self.book.end_pull(loan, ok)
        assert loan.filled == before + (count if ok else 0) and loan.pulling == 0

    @precondition(lambda self: self.book.loans)
    @rule(data=st.data(), positions=st.lists(st.integers(0, 9)))
    def close(self, data: st.DataObject, positions: list[int]) -> None:
        loan = self.loan(data)
        if not loan.revoking:
            before = loan.num_kept
            closing = self.book.close(loan, positions)
            assert set(closing) <= loan.closing and loan.num_kept == before - len(closing)
            if not loan.num_kept:
                self.book.revoke(loan, tell_debtor=True)

    @precondition(lambda self: any(loan.closing and not loan.pulling for loan in self.book.loans.values()))
    @rule(data=st.data(), count=st.integers(1, 3))
    def part_revoked(self, data: st.DataObject, count: int) -> None:
        loan = data.draw(st.sampled_from([one for one in self.book.loans.values() if one.closing and not one.pulling]))
        positions, free = tuple(sorted(loan.closing))[:count], self.pool.num_free
        assert self.book.revoked(loan.span, positions) is loan
        assert self.book.revoked(loan.span, positions) is loan, "said twice, freed once"
        assert self.pool.num_free == free + len(positions)

    @precondition(lambda self: self.book.loans)
    @rule(data=st.data(), debtor=st.sampled_from("xyz"), ttl_s=st.floats(0, 9))
    def renew(self, data: st.DataObject, debtor: str, ttl_s: float) -> None:
        loan = self.loan(data)
        refused = self.book.renew((loan.span,), debtor.encode(), ttl_s, self.clock.now())
        assert refused == ((loan.span,) if loan.revoking or loan.debtor_id != debtor else ())
        if not refused:
            self.deadlines[loan.span.span_id] = self.clock.now() + min(ttl_s, LEASE_S)

    @rule(seconds=st.floats(0, 5))
    def wait(self, seconds: float) -> None:
        now = self.clock.advance(seconds)
        expired = {loan.span.span_id for loan in self.book.expired(now)}
        live = {span_id for span_id, loan in self.book.loans.items() if not loan.revoking}
        assert expired or self.book.next_deadline() > now
        assert expired == {span_id for span_id in live if self.deadlines[span_id] <= now}
        for span_id in expired:
            self.book.revoke(self.book.loans[span_id], tell_debtor=False)

    @precondition(lambda self: any(loan.revoking and not loan.pulling for loan in self.book.loans.values()))
    @rule(data=st.data())
    def revoked(self, data: st.DataObject) -> None:
        ending = [loan for loan in self.book.loans.values() if loan.revoking and not loan.pulling]
        loan = data.draw(st.sampled_from(ending))
        free, held = self.pool.num_free, loan.num_blocks
        assert self.book.revoked(loan.span) is loan
        assert self.pool.num_free == free + held

    @invariant()
    def holds(self) -> None:
        self.book.validate()
        self.pool.validate()
        assert self.book.num_blocks <= self.cap
        assert sum(debtor.num_blocks for debtor in self.book.debtors()) == self.book.num_blocks


TestLending = Lending.TestCase
TestLending.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
