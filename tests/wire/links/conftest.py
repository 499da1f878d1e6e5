from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.wire.cable import WITHIN, cable
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


@pytest.fixture
def through() -> Iterator[Sequence[str]]:
    """What a command begins with that is to run in a network namespace, which reaches this one over a cable."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces take root and the program ip")
    with cable():
        yield WITHIN
