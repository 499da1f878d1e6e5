"""LoanCheck: a live debt meets a loan of the same slots whose lease is at least as long; each part can fail."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import pytest

from distkv import events
from distkv.control import commands as c
from distkv.control.loan.creditor.lending import Loan
from distkv.control.request.block import Debt
from distkv.sim.drawn.cluster import SimCluster
from distkv.sim.machines.processes import client_route
from distkv.wire.messages import to_rmanager as tr
from distkv.wire.messages.common import Epoch
from tests.sim.parts import check, prompt


class Pair(NamedTuple):
    """A live debt of i0 and its loan."""

    cluster: SimCluster
    debt: Debt
    loan: Loan


def debts_of(cluster: SimCluster, name: str) -> list[Debt]:
    return cluster.nodes[name].rm.state.all_debts()


@pytest.fixture
def pair() -> Pair:
    """In the middle of a request that lies on three instances."""
    cluster = SimCluster([16, 16, 16], request_timeout_s=5.0)
    cluster.submit("i0", "r", prompt(150), 24)
    state = cluster.nodes["i0"].rm.state
    assert cluster.run(60, lambda: len(cluster.outcomes["r"].tokens) >= 4 and not state.deferred)
    debt = max(debts_of(cluster, "i0"), key=lambda debt: debt.filled)
    assert debt.filled >= 2
    cluster.validate()
    return Pair(cluster, debt, cluster.nodes[debt.creditor_id].rm.state.loans.loans[debt.span.span_id])


def lose_loan(pair: Pair) -> None:
    del pair.cluster.nodes[pair.debt.creditor_id].rm.state.loans.loans[pair.debt.span.span_id]


def take_loan_back(pair: Pair) -> None:
    pair.loan.revoking = True


def grant_anew(pair: Pair) -> None:
    pair.loan.span = msgspec.structs.replace(pair.loan.span, epoch=Epoch(1, 999))


def lend_to_another(pair: Pair) -> None:
    pair.loan.debtor_id = "i9"


def lend_to_another_incarnation(pair: Pair) -> None:
    pair.loan.debtor_incarnation += 1


def lend_other_slots(pair: Pair) -> None:
    pair.loan.slots = pair.loan.slots[::-1]


def lend_fewer_slots(pair: Pair) -> None:
    pair.loan.slots = pair.loan.slots[: len(pair.debt.slots) - 1]


def forget_a_block(pair: Pair) -> None:
    pair.loan.filled = pair.debt.filled - 1


def take_a_position_back(pair: Pair) -> None:
    pair.loan.closing.add(0)


def keep_what_was_given_back(pair: Pair) -> None:
    pair.debt.given_back.add(0)


def lend_for_less(pair: Pair) -> None:
    pair.loan.expires_at = pair.debt.valid_until - 0.001


def owe_for_longer(pair: Pair) -> None:
    pair.debt.valid_until = pair.loan.expires_at + 0.001


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lose_loan, "a live debt without a loan"),
        (take_loan_back, "a live debt without a loan"),
        (grant_anew, "a live debt without a loan"),
        (lend_to_another, "is lent to another"),
        (lend_to_another_incarnation, "is lent to another"),
        (lend_other_slots, "are lent"),
        (lend_fewer_slots, "are lent"),
        (forget_a_block, "were taken over"),
        (take_a_position_back, "owed and not lent"),
        (keep_what_was_given_back, "lent and owed no more"),
        (lend_for_less, "is used until"),
        (owe_for_longer, "is used until"),
    ],
)
def test_each_part_can_fail(pair: Pair, damage: Callable[[Pair], None], complaint: str) -> None:
    damage(pair)
    with pytest.raises(AssertionError, match=re.escape(complaint)):
        pair.cluster.validate()


def test_it_is_checked_after_every_event(pair: Pair) -> None:
    pair.loan.expires_at = pair.debt.valid_until - 0.001
    with pytest.raises(AssertionError, match="is used until"):
        pair.cluster.run(0.1)


def test_a_loan_may_be_longer_and_fuller_than_its_debt(pair: Pair) -> None:
    pair.loan.expires_at += 10.0
    pair.loan.filled = len(pair.loan.slots)
    pair.cluster.validate()


# --- debts that are not live: they stand in a debtor's book, and nothing need stand in the creditor's


def is_live(pair: Pair) -> bool:
    debt = pair.debt
    assert debt in debts_of(pair.cluster, "i0")
    return pair.cluster.loans.is_live(debt, pair.cluster.clock.now())


def test_at_a_dead_creditor(pair: Pair) -> None:
    assert is_live(pair)
    pair.cluster.kill(pair.debt.creditor_id)
    assert not is_live(pair)
    pair.cluster.finish()


def test_at_another_incarnation_of_the_creditor(pair: Pair) -> None:
    creditor = pair.debt.creditor_id
    pair.cluster.kill(creditor)
    pair.cluster.start(creditor, 16, incarnation=2)
    assert not is_live(pair)
    pair.cluster.finish()
    check(pair.cluster, "r", prompt(150), 24)


def test_with_a_lease_that_has_run_out_by_the_debtors_count(pair: Pair) -> None:
    pair.cluster.freeze("i0")
    pair.cluster.clock.advance(pair.debt.valid_until - pair.cluster.clock.now() - 0.001)
    assert is_live(pair)
    pair.cluster.clock.advance(0.001)
    assert not is_live(pair)


def test_a_lease_that_has_run_out_ends_with_whatever_happens_next(pair: Pair) -> None:
    """A debtor that was stopped finds results of its worker before it knows how late it is."""
    cluster = pair.cluster
    cluster.freeze("i0")
    cluster.clock.advance(pair.debt.valid_until - cluster.clock.now())
    cluster.handle("i0", c.ClientRequested(client_route("r"), tr.KeepAlive()))
    assert pair.debt not in debts_of(cluster, "i0")


def test_a_creditor_that_counts_its_debtor_as_lost_keeps_to_the_lease(pair: Pair) -> None:
    """It hears nothing of its debtor, which stands still for less than a lease; its memory waits for it."""
    cluster, debt = pair.cluster, pair.debt
    cluster.freeze("i0")
    cluster.cut("i0", debt.creditor_id)
    cluster.run(1.5)
    assert (debt.creditor_id, events.PeerLost(peer="i0", restarted=False)) in cluster.events
    assert cluster.clock.now() < debt.valid_until and is_live(pair)
    assert cluster.nodes[debt.creditor_id].rm.state.loans.get(debt.span) is pair.loan
    cluster.freeze("i0", False)
    cluster.finish()
    cluster.settle()


# --- what it found


@pytest.mark.parametrize("seed", range(3))
def test_a_creditor_with_a_shorter_lease_is_believed(seed: int) -> None:
    """Renewals do not hold for as long as the debtor's own lease."""
    cluster = SimCluster([16], seed)
    for name in ("i1", "i2"):
        cluster.start(name, 32, lease_s=2.0)
    cluster.run(1.0)
    cluster.submit("i0", "r", prompt(150), 24)
    cluster.finish()
    check(cluster, "r", prompt(150), 24)
    assert cluster.nodes["i0"].rm.state.counters.recomputed_tokens == 0
    cluster.settle()


def test_positions_that_were_given_up_are_free_while_the_span_lives_on() -> None:
    """Else they stay reserved at the creditor until the span ends."""
    cluster = SimCluster([16, 60])
    cluster.submit("i0", "r", prompt(150), 60)
    debtor, creditor = cluster.nodes["i0"], cluster.nodes["i1"]

    def half_filled() -> Debt | None:
        return next((debt for debt in debts_of(cluster, "i0") if 2 <= debt.filled < len(debt.blocks)), None)

    assert cluster.run(60, half_filled)
    debt = half_filled()
    assert debt is not None
    loan = creditor.rm.state.loans.loans[debt.span.span_id]
    debtor.worker.incarnation = 99  # pulls from it fail
    assert cluster.run(20, lambda: debt.given_back)
    debtor.worker.incarnation = 1
    lent = len(loan.slots)
    assert cluster.run(0.5, lambda: loan.returned == debt.given_back and not debt.releasing)
    assert 0 < loan.num_blocks == debt.capacity < lent
    cluster.finish()
    check(cluster, "r", prompt(150), 60)
    cluster.settle()
