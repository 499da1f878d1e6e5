"""DebtBook: leases are renewed in time, and run out."""

from __future__ import annotations

from typing import Any

import pytest

from distkv.clock import ManualClock
from distkv.control.commands import TellPeer
from distkv.control.loan.debtor import debts as debt_book
from distkv.control.loan.debtor.debts import DebtBook, Renewal
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.wire.messages.common import Epoch, SpanRef
from distkv.wire.messages.to_rmanager import Release, Renew, Renewed
from tests.control.loan.debts.case import LEASE_S, MARGIN_S, placed_debt
from tests.control.parts import add_sequence, issued, lend, make_state


def test_a_renewal_counts_from_its_sending(
    state: RManagerState, debts: DebtBook, seq: Sequence, clock: ManualClock
) -> None:
    debt = placed_debt(state, debts, seq)
    debts.tick(clock.now())
    (renew,) = issued(state, Renew)
    assert renew.spans == (debt.span,) and renew.ttl_s == LEASE_S
    clock.advance(0.9)
    assert debts.on_renewed("p", Renewed(renewal=renew.renewal)) == []
    assert debt.valid_until == 100.0 + LEASE_S - MARGIN_S
    assert debts.on_renewed("p", Renewed(renewal=renew.renewal, refused=(debt.span,))) == [], "an answer counts once"


def test_leases_are_renewed_four_times_in_their_time(
    state: RManagerState, debts: DebtBook, seq: Sequence, clock: ManualClock
) -> None:
    placed_debt(state, debts, seq, until=1000.0)
    sent = 0
    for _ in range(80):
        debts.tick(clock.now())
        sent += len(issued(state, Renew))
        clock.advance(0.1)
    assert sent == 8


def test_a_creditor_that_lends_for_less_is_asked_more_often_and_trusted_for_less(
    state: RManagerState, debts: DebtBook, seq: Sequence, clock: ManualClock
) -> None:
    debt = placed_debt(state, debts, seq, until=1000.0)
    sent = 0
    for _ in range(32):
        debts.tick(clock.now())
        for renew in issued(state, Renew):
            sent += 1
            debts.on_renewed("p", Renewed(renewal=renew.renewal, ttl_s=LEASE_S / 2))
            assert debt.valid_until == clock.now() + LEASE_S / 2 - MARGIN_S
            assert debts.next_deadline() == clock.now() + LEASE_S / 8
        clock.advance(0.125)
    assert sent == 8


def test_more_than_one_message_may_have_goes_in_several(
    state: RManagerState, debts: DebtBook, seq: Sequence, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debt_book, "MAX_ITEMS", 2)
    held = [placed_debt(state, debts, seq, num_blocks=1, at=block) for block in range(3)]
    debts.tick(clock.now())
    renewals = issued(state, Renew)
    assert [renew.spans for renew in renewals] == [(held[0].span, held[1].span), (held[2].span,)]
    clock.advance(0.9)
    for renew in renewals:
        assert debts.on_renewed("p", Renewed(renewal=renew.renewal)) == []
    assert {debt.valid_until for debt in held} == {100.0 + LEASE_S - MARGIN_S}
    large = lend(seq, "p", 5, 103.5, 3, debts)
    debts.abandon(seq, large, 3)
    state.deferred.settle()
    assert [release.positions for release in issued(state, Release)] == [(2, 3), (4,)]


def test_each_creditor_is_asked_in_its_own_time(
    state: RManagerState, debts: DebtBook, seq: Sequence, clock: ManualClock
) -> None:
    """One that lends for less does not have all others asked as often."""
    ttl_s = {"p": LEASE_S, "q": LEASE_S / 10}
    lend(seq, "p", 2, 1000.0, debts=debts)
    lend(seq, "q", 2, 1000.0, at=2, debts=debts)
    sent = {"p": 0, "q": 0}
    for _ in range(400):
        assert debts.next_deadline() <= clock.now() + LEASE_S / 4
        debts.tick(clock.now())
        commands = [c for c in state.commands if isinstance(c, TellPeer)]
        state.commands.clear()
        for command in commands:
            assert isinstance(command.body, Renew) and len(command.body.spans) == 1
            sent[command.instance_id] += 1
            lasts = ttl_s[command.instance_id]
            debts.on_renewed(command.instance_id, Renewed(renewal=command.body.renewal, ttl_s=lasts))
        clock.advance(0.01)
    assert sent["p"] == 4 and 36 <= sent["q"] <= 40


def test_a_renewal_costs_the_same_however_many_creditors_there_are() -> None:
    """For each of them all renewals that were not answered yet were looked at."""
    seen = []
    for num_creditors in (10, 100):
        state = make_state()
        debts, seq = DebtBook(state), add_sequence(state, num_tokens=4 * num_creditors)
        for number in range(num_creditors):
            lend(seq, f"p{number}", 1, 1e9, number, debts)
        debts._renewals = looked_at = CountingRenewals()
        debts.tick(100.0)
        debts.tick(100.0 + LEASE_S / 2)
        assert len(looked_at) == 2 * num_creditors
        debts.tick(100.0 + LEASE_S)
        assert len(looked_at) == 2 * num_creditors, "those of a lease ago are forgotten"
        seen.append(looked_at.seen / num_creditors)
    assert seen[1] <= seen[0] <= 2.0, seen


class CountingRenewals(dict[int, Renewal]):
    """How many of them were looked at."""

    seen = 0

    def items(self) -> Any:
        for item in super().items():
            self.seen += 1
            yield item


@pytest.mark.parametrize("ttl_s", [0.2, 1.0, 1.9])
def test_the_margin_of_a_short_lease_is_a_quarter_of_it(
    state: RManagerState, debts: DebtBook, seq: Sequence, clock: ManualClock, ttl_s: float
) -> None:
    """A margin longer than the lease would lose every span at once."""
    debt = placed_debt(state, debts, seq, until=1000.0)
    debts.tick(clock.now())
    (renew,) = issued(state, Renew)
    debts.on_renewed("p", Renewed(renewal=renew.renewal, ttl_s=ttl_s))
    assert debt.valid_until == pytest.approx(100.0 + 0.75 * ttl_s)
    assert debts.take_expired(clock.advance(0.74 * ttl_s)) == []
    assert debts.take_expired(clock.advance(0.02 * ttl_s)) == [(seq, debt)]


def test_a_lease_that_was_not_renewed_runs_out_a_margin_early(
    state: RManagerState, debts: DebtBook, seq: Sequence, clock: ManualClock
) -> None:
    debt = placed_debt(state, debts, seq, until=100.0 + LEASE_S - MARGIN_S)
    assert debts.take_expired(clock.advance(LEASE_S - MARGIN_S - 0.01)) == []
    assert debts.take_expired(clock.advance(0.01)) == [(seq, debt)]


def test_a_refused_renewal_is_a_loss_the_others_hold(
    state: RManagerState, debts: DebtBook, seq: Sequence, clock: ManualClock
) -> None:
    gone, kept = placed_debt(state, debts, seq, 2), placed_debt(state, debts, seq, 2, at=2)
    debts.tick(clock.now())
    (renew,) = issued(state, Renew)
    assert set(renew.spans) == {gone.span, kept.span}
    assert debts.on_renewed("p", Renewed(renewal=renew.renewal, refused=(gone.span,))) == [(seq, gone)]
    assert kept.valid_until == 103.5 and gone.valid_until == 103.5
    unknown = SpanRef(span_id="else", epoch=Epoch(1, 1))
    debts.tick(clock.advance(1.0))
    (renew,) = issued(state, Renew)
    assert debts.on_renewed("p", Renewed(renewal=renew.renewal, refused=(unknown,))) == []
    assert kept.valid_until == 104.5
