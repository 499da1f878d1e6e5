"""What the tests of a PeerBook begin with."""

from __future__ import annotations

import pytest

from distkv.control.rmanager.peers.peers import (
    PeerBook,
)
from distkv.control.rmanager.state import RManagerState
from tests.control.parts import make_member, make_state


@pytest.fixture
def state() -> RManagerState:
    return make_state(peers=())


@pytest.fixture
def peers(state: RManagerState) -> PeerBook:
    peers = PeerBook(state, lambda name: any(debt.creditor_id == name for debt in state.all_debts()))
    peers.own = make_member("me", 7)
    return peers
