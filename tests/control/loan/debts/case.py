"""A debt, and steps that name it."""

from __future__ import annotations

from distkv.control.loan.debtor.debts import DebtBook
from distkv.control.request.block import Debt
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.state import RManagerState
from tests.control.parts import lend, place

LEASE_S, MARGIN_S = 4.0, 0.5


def placed_debt(
    state: RManagerState, debts: DebtBook, seq: Sequence, num_blocks: int = 2, until: float = 103.5, at: int = 0
) -> Debt:
    debt = lend(seq, "p", num_blocks, until, at, debts)
    place(state, seq, debt)
    return debt


def fly(state: RManagerState) -> int:
    """A step is in flight; returns its number."""
    for seq in state.running():
        seq.uncomputed.add(seq.length - 1, seq.length)
    step = state.scheduler.plan(state.running(), now=0.0)
    assert step is not None
    return step.step_id


def land(state: RManagerState, step_id: int) -> None:
    state.scheduler.finished(step_id)
    state.deferred.settle()
