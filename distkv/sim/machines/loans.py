"""What must hold between instances: a live debt meets a loan of the same slots, whose lease lasts at least as long.

A debt is live from when its debtor hears of the grant, until

- its debtor gives it up (it is in no book of the debtor any more), or the debtor's process ends;
- its lease has run out by the debtor's own count;
- the process that granted it ends: another incarnation of the creditor owes the debtor nothing.

Until then its loan must be there, not on its way back, of the same span in the same epoch, to this debtor, with the
same slots; what the debtor takes for filled must be filled, and the lease must not end sooner by the creditor's count
than by the debtor's. A position that the debtor has not given back must not be on its way back at the creditor; one
that it has given back is free there, or the debtor waits for its step in flight or for the answer, and asks again. A
loan without a debt is no contradiction: a grant may be on its way to its debtor, or a release from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distkv.control.loan.creditor.lending import Loan
from distkv.control.request.block import Debt
from distkv.sim.machines.node import Node


class LoanCheck:
    """Compares the books of all instances. Nodes are by instance id, the newest incarnation of each."""

    def __init__(self, nodes: Mapping[str, Node[Any]]) -> None:
        self._nodes = nodes
        self._debtors: dict[str, set[str]] = {}

    def validate(self, now: float) -> None:
        """Every live debt meets its loan."""
        for name in self._nodes:
            self._validate_debts_of(name, now)

    def validate_of(self, name: str, now: float) -> None:
        """After an event at one instance: its debts, and those of who owed it something, meet their loans."""
        self._validate_debts_of(name, now)
        for debtor in sorted(self._debtors.get(name, ())):
            self._validate_debts_of(debtor, now)

    def _validate_debts_of(self, name: str, now: float) -> None:
        node = self._nodes[name]
        if node.alive:
            for debt in node.rm.state.all_debts():
                self._debtors.setdefault(debt.creditor_id, set()).add(name)
                if self.is_live(debt, now):
                    self._meets_its_loan(name, node.settings.incarnation, debt)

    def is_live(self, debt: Debt, now: float) -> bool:
        """Of a debt in the books of an instance that is alive."""
        creditor = self._nodes[debt.creditor_id]
        return (
            now < debt.valid_until and creditor.alive and creditor.settings.incarnation == debt.span.epoch.incarnation
        )

    def _meets_its_loan(self, debtor_id: str, incarnation: int, debt: Debt) -> None:
        what = f"{debt.span.span_id} of {debtor_id} at {debt.creditor_id}"
        loan = self._nodes[debt.creditor_id].rm.state.loans.get(debt.span)
        assert loan is not None, f"{what}: a live debt without a loan"
        assert (loan.debtor_id, loan.debtor_incarnation) == (debtor_id, incarnation), f"{what} is lent to another"
        assert loan.slots == debt.slots, f"{what}: {debt.slots} are owed, {loan.slots} are lent"
        self._positions_agree(what, debt, loan, bool(self._nodes[debtor_id].rm.state.deferred))
        assert debt.filled <= loan.filled, f"{what}: {debt.filled} blocks are placed, {loan.filled} were taken over"
        assert debt.valid_until <= loan.expires_at, (
            f"{what} is used until {debt.valid_until:.3f} and lent until {loan.expires_at:.3f}"
        )

    def _positions_agree(self, what: str, debt: Debt, loan: Loan, is_deferring: bool) -> None:
        given_up = (loan.closing | loan.returned) - debt.given_back
        assert not given_up, f"{what}: positions {given_up} are owed and not lent"
        if not is_deferring:
            kept = debt.given_back - debt.releasing - loan.returned
            assert not kept, f"{what}: positions {kept} are lent and owed no more, and nobody says so"
