from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tests.client.fakes import BackgroundFakes, FakeCluster, Serve, count_up


@pytest.fixture
async def start_fakes() -> AsyncIterator[Callable[..., FakeCluster]]:
    """Makes fake clusters: one instance per `serve` given."""
    started: list[FakeCluster] = []

    def start(*serves: Serve) -> FakeCluster:
        started.append(FakeCluster(*(serves or (count_up,))))
        return started[-1]

    yield start
    for cluster in started:
        cluster.die()


@pytest.fixture
def background() -> Iterator[BackgroundFakes]:
    """Starts fake clusters beside the test's thread."""
    fakes = BackgroundFakes()
    yield fakes
    fakes.close()
