"""ProgressWatch: a request that stands still while it could go on is seen; one that cannot go on is not."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from distkv.sim.drawn.cluster import SimCluster
from distkv.sim.drawn.progress import MOST_S
from tests.sim.parts import prompt


@pytest.fixture
def cluster() -> SimCluster:
    """i0 lends from i1 and i2, and has a token."""
    cluster = SimCluster([16, 16, 32])
    cluster.submit("i0", "r", prompt(100), 100)
    assert cluster.run(60, lambda: cluster.outcomes["r"].tokens)
    return cluster


def watch(cluster: SimCluster, seconds: float) -> None:
    """Time passes and nobody does anything."""
    for _ in range(round(seconds / 0.5)):
        cluster.progress.validate(cluster.clock.advance(0.5))


def test_a_request_that_stands_still_is_seen(cluster: SimCluster) -> None:
    watch(cluster, MOST_S)
    with pytest.raises(AssertionError, match=r"r at i0, running, got no token after its 1 for 15.5 s, while it could"):
        watch(cluster, 1.0)


def test_a_token_begins_a_new_time(cluster: SimCluster) -> None:
    watch(cluster, MOST_S)
    cluster.outcomes["r"].tokens.append(1)
    watch(cluster, MOST_S)


def wait(cluster: SimCluster) -> None:
    """The one that is watched waits behind an older one that waits too."""
    sequences = cluster.nodes["i0"].rm.state.sequences
    sequences.wait(sequences["r"], retry_at=math.inf)
    cluster.submit("i0", "younger", prompt(5), 1)
    sequences.wait(sequences["younger"], retry_at=math.inf)
    del cluster.owner["r"]


@pytest.mark.parametrize(
    "excuse",
    [
        lambda cluster: cluster.freeze("i0"),
        lambda cluster: cluster.stall_steps("i0"),
        lambda cluster: (cluster.freeze("i1"), cluster.freeze("i2")),
        lambda cluster: (cluster.cut_path("i0", "i1"), cluster.cut_path("i2", "i0")),
        lambda cluster: (cluster.fail_pulls("i1"), cluster.fail_pulls("i2")),
        wait,
    ],
)
def test_one_that_cannot_go_on_may_stand_still(cluster: SimCluster, excuse: Callable[[SimCluster], object]) -> None:
    excuse(cluster)
    watch(cluster, 3 * MOST_S)
