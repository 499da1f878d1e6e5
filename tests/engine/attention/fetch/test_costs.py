"""Which way is taken: what was measured decides, and learning what the other one takes is bounded."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

import pytest

from distkv.engine.attention.fetch.costs import (
    EXPLORING_PAUSE,
    EXPLORING_SHARE,
    KEPT,
    Costs,
    OwnAttention,
    Way,
    Work,
    proportional,
)

WORK = Work(512, 64)
Truth = Callable[[Way, Work], float]


def test_without_measurements_queries_are_shipped() -> None:
    costs = Costs()
    assert costs.choose(WORK) == "ship"
    assert costs.estimate_s("ship", WORK) is None and costs.estimate_s("fetch", WORK) is None


def test_what_was_measured_is_expected_of_neighbours_in_proportion() -> None:
    costs = Costs()
    costs.took("ship", WORK, 0.5)
    assert costs.estimate_s("ship", WORK) == 0.5
    longer, fewer, far = Work(512, 128), Work(128, 64), Work(512, 512)
    assert costs.estimate_s("ship", longer) == pytest.approx(
        0.5 * proportional("ship", longer) / proportional("ship", WORK)
    )
    assert costs.estimate_s("ship", fewer) == pytest.approx(0.125)
    assert 0.5 < (costs.estimate_s("ship", longer) or 0) < 1.0, "rows travel once, however long the span is"
    costs.took("ship", far, 8.0)
    assert 8.0 < (costs.estimate_s("ship", Work(512, 1024)) or 0) < 16.0, "the nearest one counts"
    costs.took("ship", WORK, 1.5)
    assert costs.estimate_s("ship", WORK) == 0.5, "one that took longer does not count"
    for _ in range(KEPT - 1):
        costs.took("ship", WORK, 1.5)
    assert costs.estimate_s("ship", WORK) == 1.5, "if the next ones do not"


def test_fetching_is_expected_to_take_what_attention_over_own_keys_does() -> None:
    own = OwnAttention()
    assert own.expected_s(WORK) == 0
    own.took(100.0, 1e-4)
    assert own.expected_s(WORK) == pytest.approx(512 * 64 * 1e-6)
    for _ in range(20):
        own.took(100_000.0, 0.2)
    assert own.expected_s(WORK) == pytest.approx(512 * 64 * 2e-6, rel=0.01), "long ones count most"
    costs = Costs()
    costs.took("ship", WORK, 1.0)
    assert costs.choose(WORK, attend_s=2.0) == "ship"
    assert costs.choose(WORK, attend_s=1.2) == "fetch", "as long as that, it is tried"
    assert costs.choose(WORK, attend_s=0.5) == "fetch"


def test_a_profile_is_believed_until_something_was_measured() -> None:
    def model(way: Way, work: Work) -> float:
        return work.rows * work.blocks * (1e-6 if way == "ship" else 2e-6)

    costs = Costs(model)
    assert costs.estimate_s("fetch", WORK) == pytest.approx(512 * 64 * 2e-6)
    costs.took("ship", WORK, model("ship", WORK) * 10)
    assert costs.estimate_s("ship", Work(512, 512)) == pytest.approx(10 * model("ship", Work(512, 512)))
    assert costs.choose(WORK) == "fetch"


def test_the_other_way_is_tried_where_nothing_is_known_of_it() -> None:
    costs = Costs()
    costs.took("ship", WORK, 1.0)
    assert costs.choose(WORK) == "fetch"
    costs.took("fetch", WORK, 0.5)
    assert costs.choose(WORK) == "fetch" and costs.choose(Work(512, 100)) == "fetch"


def test_a_link_whose_speed_nobody_knows_is_not_read_from() -> None:
    costs = Costs()
    costs.took("ship", WORK, 1.0)
    assert costs.choose(WORK, read_bytes=10**6) == "ship"
    costs.read(1000, 1.0)
    assert costs.choose(WORK, read_bytes=10**6) == "ship", "reading takes 1,000 s"
    costs.read_s_per_byte = None
    costs.read(10**6, 0.5)
    assert costs.choose(WORK, read_bytes=10**6) == "fetch"


def chosen(costs: Costs, truth: Truth, work: Work, turns: int) -> tuple[float, float, list[Way]]:
    """Seconds that the choices took, that the better way would have taken, and the choices."""
    ways: list[Way] = []
    for _ in range(turns):
        way = costs.choose(work)
        costs.took(way, work, truth(way, work))
        ways.append(way)
    return sum(truth(way, work) for way in ways), turns * min(truth("ship", work), truth("fetch", work)), ways


@pytest.mark.parametrize("times", [0.3, 0.9, 1.1, 3.0, 30.0])
def test_exploring_costs_little(times: float) -> None:
    """times: of shipping, what fetching takes."""
    costs = Costs()
    spent_s, best_s, ways = chosen(costs, lambda way, _: 1.0 if way == "ship" else times, WORK, 2000)
    first_s = times + 1.0
    assert spent_s - best_s <= EXPLORING_SHARE * best_s * 1.1 + first_s
    other = "fetch" if times > 1 else "ship"
    assert 1 <= ways.count(other) <= 2 + 2000 / EXPLORING_PAUSE, "it is tried now and then"


def test_a_creditor_that_gets_busy_and_idle_again_is_followed() -> None:
    costs = Costs()
    ship_s = 1.0

    def truth(way: Way, _: Work) -> float:
        return ship_s if way == "ship" else 2.0

    assert chosen(costs, truth, WORK, 100)[2][-50:].count("ship") >= 48
    ship_s = 4.0
    assert chosen(costs, truth, WORK, 100)[2][-50:].count("fetch") >= 48
    ship_s = 1.0
    assert chosen(costs, truth, WORK, 2000)[2][-100:].count("ship") >= 95


def test_within_five_percent_over_a_grid_whatever_the_order() -> None:
    """Shipping has a fixed part and rows that travel, fetching has blocks that travel; chunks come in any order."""
    draw = random.Random(3)

    def truth(way: Way, work: Work) -> float:
        pairs = work.rows * work.blocks
        if way == "ship":
            return 1e-3 + 4e-5 * work.rows + 1e-6 * pairs
        return 3e-4 + 2e-4 * work.blocks + 1.3e-6 * pairs

    cells = [Work(rows, blocks) for rows in (16, 128, 512, 2048) for blocks in (4, 32, 256, 2048)]
    costs = Costs()
    spent = dict.fromkeys(cells, 0.0)
    for turn in range(16 * 150):
        work = draw.choice(cells)
        way = costs.choose(work)
        costs.took(way, work, truth(way, work) * draw.uniform(0.95, 1.05))
        if turn > 16 * 20:
            spent[work] += truth(way, work) / min(truth("ship", work), truth("fetch", work)) - 1
    worst = max(spent.values()) / 130
    assert worst < 0.05


def test_a_way_that_seems_far_worse_is_tried_when_that_costs_little() -> None:
    def model(way: Way, work: Work) -> float:
        return work.rows * (1.0 if way == "ship" else 8.0)

    costs = Costs(model)
    ways = [costs.choose(WORK) for _ in range(400)]
    assert ways.index("fetch") == pytest.approx(7 / EXPLORING_SHARE, abs=2)


def excess(fetch_s: float, first_times: float, stalls: float, seed: int) -> float:
    """By how much of the better way the choices took longer, after 24 in which they learned. Shipping takes 1 s; what
    is done for the first time takes so many times as long, and this share of steps up to four times."""
    draw, costs, truth = random.Random(seed), Costs(), {"ship": 1.0, "fetch": fetch_s}
    seen: set[Way] = set()
    spent_s = 0.0
    for turn in range(24 + 200):
        way = costs.choose(WORK, attend_s=fetch_s)
        took_s = truth[way] * draw.uniform(0.95, 1.1) * (draw.uniform(1.5, 4.0) if draw.random() < stalls else 1.0)
        costs.took(way, WORK, took_s if way in seen else first_times * took_s)
        seen.add(way)
        spent_s += truth[way] if turn >= 24 else 0.0
    return spent_s / 200 / min(truth.values()) - 1.0


@pytest.mark.parametrize("fetch_s", [0.5, 0.8, 0.9, 1.1, 1.25, 2.0])
@pytest.mark.parametrize("first_times", [1.0, 2.0])
def test_steps_that_stall_now_and_then_decide_nothing(fetch_s: float, first_times: float) -> None:
    found = [excess(fetch_s, first_times, 0.05, seed) for seed in range(20)]
    assert statistics.fmean(found) < 0.04 and sum(one > 0.05 for one in found) <= 4
