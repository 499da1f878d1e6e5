"""What the tests of native calls between a debtor and a creditor begin with."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.kernels.cpu.exchange_case import DEADLINE_S, Case, usable


@pytest.fixture(params=usable, ids=lambda backend: backend.name)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    there.settimeout(DEADLINE_S)
    with here, there:
        yield here, there
