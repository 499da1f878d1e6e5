from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import pytest

from distkv.wire.links import Registrations
from tests.wire.links.faults.owner import DEADLINE_S, NUM_SLOTS, SLOT_BYTES, TRANSPORTS, Owner, registered_for, running
from tests.wire.links.peers import AnyPool, pool_for, why_not


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def own(transport: str) -> Iterator[AnyPool]:
    """The pool that is read into."""
    if why := why_not(transport):
        pytest.skip(why)
    with contextlib.closing(pool_for(transport, SLOT_BYTES, NUM_SLOTS)) as pool:
        yield pool


@pytest.fixture
def registered(transport: str, own: AnyPool) -> Iterator[Registrations]:
    registered = registered_for(transport, own)
    yield registered
    for registration in registered.values():
        registration.close()


@pytest.fixture
def owner(transport: str, registered: Registrations) -> Iterator[Owner]:
    with running(transport) as owner:
        yield owner


@pytest.fixture
def took(record_property: Callable[[str, object], None]) -> Iterator[Callable[[], None]]:
    """Called when a fault begins: how long the test takes from then on is noted, and never up to the deadline."""
    began: list[float] = []
    yield lambda: began.append(time.monotonic())
    assert began
    seconds = time.monotonic() - began[0]
    record_property("fault_s", round(seconds, 3))
    assert seconds < DEADLINE_S
