"""Goals are met, missed or unresolved by the whole interval, and stated also where nothing was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distkv.bench.harness.report import Goal
from distkv.bench.pooling.goals import Found, goals
from distkv.bench.pooling.summary import GOODPUT, TOKENS, at

ABSENT = {name: f"gManagers know no policy {name}" for name in ("greedy", "even")}


def found(**changes: Any) -> Found:
    samples = {
        at(TOKENS, 1): {"off": [10.0, 10.1], "contract": [9.9, 10.1], "big": [10.0, 10.0], "vllm": [5.0, 5.0]},
        at(TOKENS, 2): {"off": [10.0, 11.0], "contract": [15.0, 16.0], "big": [20.0, 21.0], "vllm": [9.0, 9.0]},
        at(TOKENS, 4): {"off": [9.0, 10.0], "contract": [14.0, 15.0], "big": [20.0, 21.0], "vllm": [8.0, 8.0]},
        at(GOODPUT, 1): {"off": [1.0, 1.0], "contract": [1.0, 1.0], "vllm": [0.4, 0.5]},
        at(GOODPUT, 2): {"off": [1.0, 1.0], "contract": [0.5, 0.5], "vllm": [0.4, 0.3]},
        at(GOODPUT, 4): {"off": [1.0, 1.0], "contract": [0.0, 0.0], "vllm": [0.0, 0.0]},
    }
    values: dict[str, Any] = {
        "samples": samples,
        "rates": (1.0, 2.0, 4.0),
        "left_out": ABSENT,
        "varied": True,
        "unheld": 2,
        "served": {"off": (0, 6), "contract": (6, 6)},
        "saturated": True,
        "shorts_s": {
            "off": {1.0: [[1.0, 0.5], [1.0, 0.5]], 2.0: [[1.0, 1.0], [1.0, 1.0]], 4.0: [[1.0], [1.0]]},
            "contract": {1.0: [[1.0, 0.5], [1.05, 0.5]], 2.0: [[1.0, 1.0], [1.3, 1.3]], 4.0: [[0.5], [0.6]]},
        },
    }
    return Found(**values | changes)


def of(policy: str, seen: Found, default: str = "contract") -> Mapping[str, Goal]:
    return {one.goal: one for one in goals(seen, default) if f", {policy}" in one.goal}


def test_each_contender_counts_at_its_best_rate() -> None:
    stated = of("contract", found())
    goal = stated["saturated throughput, contract, the default to off"]
    assert (goal.met, goal.target, goal.measured[:4]) == (True, "at least 1.35", "1.48")
    assert stated["saturated throughput, contract, the default to one big instance"].met is False
    assert stated["goodput, contract, the default to instances of vLLM"].met is True


def test_an_interval_across_the_target_resolves_nothing() -> None:
    stated = of("contract", found(), default="greedy")
    lowest = stated["throughput at the lowest rate, contract to off"]
    assert lowest.met is True
    short = stated["time to first token of short requests of all rounds, p99, contract to off, at its worst rate, 2/s"]
    assert short.met is None and short.why == "the 95 % interval includes the target"


def test_a_trace_of_low_variance_has_another_target() -> None:
    goal = of("contract", found(varied=False))["saturated throughput, contract, the default to off"]
    assert goal.target == "at least 1"


def test_requests_that_no_pool_holds_are_all_served() -> None:
    name = "requests that no single instance holds are served, contract, the default"
    assert of("contract", found())[name] == Goal(name, "all", "6 of 6, off 0", True)
    assert of("contract", found(served={"contract": (5, 6)}))[name].met is False
    assert of("contract", found(unheld=0))[name].met is None


def test_every_goal_is_stated_of_who_did_not_run() -> None:
    stated = of("greedy", found())
    assert len(stated) == 6
    assert all(one.met is None and "gManagers know no policy greedy" in one.why for one in stated.values())
    alone = found(left_out=ABSENT | {"off": "it was not asked for", "vllm": "it is not installed"})
    measured = [one for one in of("contract", alone).values() if one.met is not None]
    assert {one.goal.partition(",")[0] for one in measured} == {
        "saturated throughput",
        "requests that no single instance holds are served",
    }


def test_nothing_is_said_of_saturation_that_was_not_reached() -> None:
    stated = of("contract", found(saturated=False))
    unknown = [one for name, one in stated.items() if name.startswith(("saturated", "goodput"))]
    assert unknown and all(one.met is None and one.measured == "not measured" for one in unknown)


def test_requests_that_were_not_played_prove_nothing() -> None:
    stated = of("contract", found(served={"off": (0, 0), "contract": (0, 0)}))
    (goal,) = (one for name, one in stated.items() if name.startswith("requests that no single"))
    assert goal.met is None
