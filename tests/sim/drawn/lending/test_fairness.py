"""A large request beside many small ones on a busy cluster: neither keeps the other from running."""

from __future__ import annotations

import pytest

from distkv.control.schedule.admission.waiting import AGED_S
from distkv.sim.drawn.cluster import BLOCK, SimCluster
from tests.sim.arrivals import (
    CHUNK_TOKENS,
    SATURATED_PER_S,
    arrivals,
    first_come_first_served,
    one_step_per_tick,
    serve,
)
from tests.sim.parts import check, prompt

SMALL, BIG = 20, 140


@pytest.mark.slow
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


WHALE, NUM_WHALES, CHAT, NUM_CHATS = 640, 8, 12, 4


def test_chats_begin_at_once_beside_long_prompts() -> None:
    """They waited until all long prompts before them were computed."""
    cluster = SimCluster([WHALE // BLOCK * NUM_WHALES + 64])
    worker = cluster.nodes["i0"].worker
    one_step_per_tick(worker)
    whales = {f"whale{number}": (prompt(WHALE, number), 1) for number in range(NUM_WHALES)}
    chats = {f"chat{number}": (prompt(CHAT, 100 + number), 4) for number in range(NUM_CHATS)}
    came, began, ended = dict[str, int](), dict[str, int](), dict[str, int]()
    tick = 0
    while len(ended) < len(whales) + len(chats):
        for request_id, wanted in ({0: whales, 4: chats}.get(tick, {})).items():
            cluster.submit("i0", request_id, *wanted)
            came[request_id] = tick
        worker.stalled = False
        while cluster.deliver():
            pass
        for request_id in came:
            if request_id not in began and cluster.outcomes[request_id].tokens:
                began[request_id] = tick - came[request_id]
            if request_id not in ended and cluster.outcomes[request_id].done:
                ended[request_id] = tick
                check(cluster, request_id, *(whales | chats)[request_id])
        cluster.tick()
        tick += 1
    alone = WHALE // CHUNK_TOKENS
    assert max(began[name] for name in chats) <= 4
    assert began["whale0"] <= 2 * alone + 2, "it is not kept from ending either"
    assert max(began.values()) <= NUM_WHALES * alone + NUM_CHATS + 2, "and nothing is wasted"
