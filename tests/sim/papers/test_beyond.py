"""Figures that no paper has."""

from __future__ import annotations

import pytest

from distkv.sim.papers.beyond.context import longest_tokens
from distkv.sim.papers.beyond.failures import STATED_S
from distkv.sim.papers.clusters import cluster
from distkv.sim.run import simulate
from distkv.sim.trace import TraceRequest


@pytest.mark.parametrize("instances", [1, 3])
def test_the_longest_context_is_the_last_that_is_taken(instances: int) -> None:
    spec = cluster("a100-llama2-7b", instances, "contract", network="infiniband")
    tokens, block = longest_tokens(spec), spec.profile.block_tokens
    assert 0.95 * instances * spec.kv_tokens < tokens <= instances * spec.kv_tokens
    (more,) = simulate([TraceRequest(0.0, tokens + block - 2, 2)], spec).outcomes
    assert more.is_refused and not more.times_s


def test_a_failure_is_stated_for_an_hour_of_32_instances() -> None:
    assert STATED_S / 32 == 3600
