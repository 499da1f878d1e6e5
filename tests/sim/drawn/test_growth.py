"""Requests that grow beside each other: growth is foreseen, memory is kept for it, and little is computed twice."""

from __future__ import annotations

import pytest

from distkv.sim.drawn.cluster import SimCluster
from tests.lanes import rest_is_slow
from tests.sim.parts import check, prompt

REQUESTS = 6
BETWEEN = ((8, 60), (8, 100), (4, 120), (40, 60))
"""Lengths like those that are always run."""


def recomputed_per_token(seed: int, prompt_tokens: int, max_tokens: int) -> float:
    """Six requests on 3 x 16 rBlocks of 4 tokens: tokens computed again for each that was generated."""
    cluster = SimCluster([16, 16, 16], seed)
    for number in range(REQUESTS):
        cluster.submit(f"i{number % 3}", f"r{number}", prompt(prompt_tokens, number), max_tokens)
    cluster.finish(60)
    for number in range(REQUESTS):
        check(cluster, f"r{number}", prompt(prompt_tokens, number), max_tokens)
    cluster.settle()
    states = [node.rm.state for node in cluster.nodes.values()]
    return sum(state.counters.recomputed_tokens for state in states) / (REQUESTS * max_tokens)


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens"),
    rest_is_slow([(12, 80), (8, 40), (20, 40), (4, 100), *BETWEEN]),
)
def test_six_growing_requests_recompute_a_quarter_of_what_they_generate_at_most(
    prompt_tokens: int, max_tokens: int
) -> None:
    """It was 0.24 to 1.32, more than was generated; and 0.31 to 0.43 for the longer ones, which need more than the pool
    of an instance, while what they had borrowed to grow into went back at once."""
    seeds = range(4)
    ratios = [recomputed_per_token(seed, prompt_tokens, max_tokens) for seed in seeds]
    assert sum(ratios) / len(ratios) <= 0.25, ratios
