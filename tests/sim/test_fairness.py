"""A large request beside many small ones on a busy cluster: neither keeps the other from running."""

from __future__ import annotations

import pytest

from distkv.sim.cluster import SimCluster
from tests.sim.parts import check, prompt

SMALL, BIG = 20, 140


@pytest.mark.parametrize("seed", range(2))
def test_a_large_request_runs_beside_small_ones_that_keep_coming(seed: int) -> None:
    """The large one needs most of the cluster; it never ran, nor did any small one behind it."""
    cluster = SimCluster([16, 16, 16], seed)
    wanted: dict[str, tuple[list[int], int]] = {}

    def submit(name: str, request_id: str, length: int, max_tokens: int) -> None:
        wanted[request_id] = prompt(length, len(wanted)), max_tokens
        cluster.submit(name, request_id, *wanted[request_id])

    for number in range(120):
        submit(f"i{number % 3}", f"s{number}", SMALL, 24)
        if number == 20:
            submit("i0", "big", BIG, 4)
        cluster.run(0.1)
    assert cluster.outcomes["big"].tokens, "it runs while small ones still come"
    cluster.finish(120)
    for request_id, (tokens, max_tokens) in wanted.items():
        check(cluster, request_id, tokens, max_tokens)
    cluster.settle()
