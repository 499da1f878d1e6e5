"""Between hosts whose network is slow for queries of prompts sharing costs nothing; within a host it still pays."""

from __future__ import annotations

from statistics import fmean

import pytest

from distkv.sim.run import SimResult, simulate
from distkv.types import PolicyName
from distkv.wire.messages.profile import LinkProfile
from tests.sim.timed.lending.test_pays import documents
from tests.sim.timed.parts import spec

SLOW = LinkProfile(round_trip_s=1e-4, bytes_per_s=1e7, read_bytes_per_s=1e7)
"""A row's queries and partials take 3 ms in all layers, and its tokens 0.1 ms to compute."""


def played(policy: PolicyName, instances: int, instances_per_host: int) -> list[SimResult]:
    given = {"instances": instances, "instances_per_host": instances_per_host, "network_link": SLOW, "checks": False}
    return [simulate(documents(seed), spec(policy=policy, seed=seed, **given)) for seed in range(4)]


def times_faster(instances: int, instances_per_host: int) -> float:
    alone, sharing = (played(policy, instances, instances_per_host) for policy in ("none", "contract"))
    assert all(not one.failed for result in (*alone, *sharing) for one in result.outcomes)
    return fmean(own.simulated_s / shared.simulated_s for own, shared in zip(alone, sharing, strict=True))


@pytest.mark.slow
def test_over_a_slow_network_nobody_borrows_what_fits_at_home() -> None:
    """While they did, three instances had 0.93 of the throughput without sharing."""
    assert times_faster(3, 1) >= 0.98


@pytest.mark.slow
def test_on_each_host_it_pays_as_if_there_were_no_other() -> None:
    assert times_faster(6, 3) >= 1.15
