from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.wire.links.peers import OPTIONAL, TRANSPORTS, Pair, open_pair, why_not


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if why := why_not(name):
        pytest.skip(why)
    return name


@pytest.fixture(scope="session")
def libraries() -> None:
    """Those of optional transports, in use once: what they open for good is open before a test looks."""
    for name in OPTIONAL:
        if not why_not(name):
            with open_pair(name):
                pass


@pytest.fixture
def pair(transport: str) -> Iterator[Pair]:
    with open_pair(transport) as pair:
        yield pair


@pytest.fixture(autouse=True)
def leaves_no_descriptors(libraries: None) -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    maps = pool_mappings()
    yield
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208
    assert pool_mappings() <= maps


def pool_mappings() -> int:
    return Path("/proc/self/maps").read_text(encoding="utf-8").count("memfd:distkv-pool")
