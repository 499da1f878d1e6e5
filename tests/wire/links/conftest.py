from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.wire.links.peers import TRANSPORTS, Pair, open_pair


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pair(transport: str) -> Iterator[Pair]:
    with open_pair(transport) as pair:
        yield pair


@pytest.fixture(autouse=True)
def leaves_no_descriptors() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    maps = pool_mappings()
    yield
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208
    assert pool_mappings() <= maps


def pool_mappings() -> int:
    return Path("/proc/self/maps").read_text(encoding="utf-8").count("memfd:distkv-pool")
