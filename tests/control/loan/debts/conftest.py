"""What the tests of a DebtBook begin with."""

from __future__ import annotations

import pytest

from distkv.clock import ManualClock
from distkv.control.loan.debtor.debts import DebtBook
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.state import RManagerState
from tests.control.parts import add_sequence, compute, make_state


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def state() -> RManagerState:
    return make_state()


@pytest.fixture
def debts(state: RManagerState) -> DebtBook:
    return DebtBook(state)


@pytest.fixture
def seq(state: RManagerState) -> Sequence:
    seq = add_sequence(state, num_tokens=22)
    compute(state, seq)
    return seq
