"""Under greedy an instance that owes lends nothing, and one that lends borrows nothing and reclaims (001 §5.2)."""

from __future__ import annotations

from distkv.control.commands import Answer
from distkv.control.loan.creditor.reclaimer import NONE_LACKS, Reclaimer
from distkv.control.loan.debtor.borrow import Purpose
from distkv.control.loan.debtor.debts import DebtBook
from distkv.control.rmanager.state import RManagerState
from distkv.wire.messages.to_rmanager import Reclaim, TryMoveKvcache
from tests.control.parts import add_sequence, compute, lend, make_state


def lent(state: RManagerState, num_blocks: int) -> None:
    wanted = TryMoveKvcache(
        span_id="s", request_id="x", debtor_id="p", debtor_incarnation=1, num_blocks=num_blocks, ttl_s=4.0
    )
    state.loans.try_grant(b"p", wanted, num_blocks, 0.0)


def test_who_owes_or_looks_for_a_creditor_lends_nothing() -> None:
    state = make_state()
    debts = DebtBook(state)
    seq = add_sequence(state)
    compute(state, seq)
    free = state.lendable()
    debt = lend(seq, "p", 1, debts=debts)
    assert state.lendable() == free > 0, "by contract it may do both"
    state.policy = "greedy"
    assert state.lendable() == 0 and state.num_debts == 1
    debts.lose(seq, debt)
    assert state.lendable() > 0 and state.num_debts == 0
    state.borrower.start(seq, Purpose.RELIEVE, 1, 0.0)
    assert state.lendable() == 0
    state.borrower.cancel(seq)
    assert state.lendable() > 0


def test_who_lends_asks_nobody() -> None:
    state = make_state()
    lent(state, 2)
    assert state.has_creditors
    state.policy = "greedy"
    assert not state.has_creditors
    state.loans.revoke(state.loans.loans["s"], tell_debtor=False)
    state.loans.revoked(state.loans.loans["s"].span)
    assert state.has_creditors


def test_slots_for_those_that_run_are_reclaimed_before_they_are_gone() -> None:
    state = make_state(8)
    reclaimer = Reclaimer(state, lambda now: NONE_LACKS)
    for name in ("a", "b"):
        compute(state, add_sequence(state, name, 8))
    lent(state, 3)
    assert state.pool.num_free == 1 < len(state.running())
    state.policy = "greedy"
    for now in (10.0, 10.0 + state.settings.reclaim_after_s):
        reclaimer.advance(now)
        reclaimer.validate()
    assert state.is_short
    (reclaim,) = [one.body for one in state.commands if isinstance(one, Answer) and isinstance(one.body, Reclaim)]
    assert reclaim.keep_blocks == 2, "one is missing"


def test_by_contract_they_borrow_instead() -> None:
    state = make_state(8)
    reclaimer = Reclaimer(state, lambda now: NONE_LACKS)
    compute(state, add_sequence(state, "a", 16))
    lent(state, 4)
    for now in (10.0, 20.0):
        reclaimer.advance(now)
    assert not state.is_short
