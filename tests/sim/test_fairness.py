"""A large request beside many small ones on a busy cluster: neither keeps the other from running."""

from __future__ import annotations

import pytest

from distkv.control.schedule.waiting import AGED_S
from distkv.sim.cluster import SimCluster
from tests.sim.arrivals import SATURATED_PER_S, arrivals, first_come_first_served, serve
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


LOAD = 0.8
MOST_BY_WORK = 20.0
"""How much longer than AGED_S a request waits at most: so many times the work before it (docs/design.md)."""


def wait_at_a_load(count: int, seed: int, *, validate: bool) -> None:
    """Nobody waits for long, and all are served as soon as they are with one queue for one pool."""
    coming = arrivals(count, LOAD * SATURATED_PER_S, seed)
    served, reference = serve(coming, seed, validate=validate), first_come_first_served(coming)
    assert served.most_by_work(AGED_S) <= MOST_BY_WORK
    assert served.ended_s <= reference.ended_s + 5.0, "the throughput is not lower"


def test_nobody_waits_longer_than_a_multiple_of_the_work_before_it() -> None:
    wait_at_a_load(300, 2, validate=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nobody_of_ten_thousand_waits_longer_than_a_multiple_of_the_work_before_it() -> None:
    wait_at_a_load(10_000, 1, validate=False)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_many_at_once_are_served_within_the_work_before_them() -> None:
    """Where all have aged."""
    coming = arrivals(400, 8 * SATURATED_PER_S, 1)
    served = serve(coming, 1, validate=False)
    assert served.most_by_work(AGED_S) <= MOST_BY_WORK
    assert served.ended_s <= 1.25 * len(coming) / SATURATED_PER_S
