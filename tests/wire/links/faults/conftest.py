from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from distkv.errors import ConfigError
from distkv.wire.links import PoolMemory, Registrations, register
from tests.wire.links.faults.owner import DEADLINE_S, NUM_SLOTS, SLOT_BYTES, TRANSPORTS, Owner, insisted, running


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def own() -> Iterator[PoolMemory]:
    """The pool that is read into."""
    with PoolMemory(SLOT_BYTES, NUM_SLOTS) as pool:
        yield pool


@pytest.fixture
def registered(transport: str, own: PoolMemory) -> Iterator[Registrations]:
    try:
        registered = register(own, insisted(transport))  # type: ignore[arg-type]
    except ConfigError as error:
        pytest.skip(str(error))
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
