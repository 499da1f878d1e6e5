"""Figures that no paper has."""

from __future__ import annotations

import pytest

from distkv.sim.outcome import Outcome
from distkv.sim.papers.beyond.context import longest_tokens
from distkv.sim.papers.beyond.failures import STATED_S, rarer
from distkv.sim.papers.beyond.goodput import COMPARED, LOADS, OURS, VLLM, Measured, first, is_served, measured
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


def test_failures_that_come_half_as_often_cost_half() -> None:
    assert rarer([0.9, 1.02], 2) == pytest.approx([0.95, 1.01])


@pytest.mark.parametrize(
    ("times_s", "failed", "served"),
    [
        ([30.0, 30.1, 30.2], "", True),
        ([30.1, 30.2, 30.3], "", False),
        ([1.0, 1.1, 1.21], "", False),
        ([1.0], "", True),
        ([], "", False),
        ([1.0, 1.1], "unfinished", False),
    ],
)
def test_limits_are_of_the_first_token_and_of_the_mean_of_the_others(
    times_s: list[float], failed: str, served: bool
) -> None:
    assert is_served(Outcome(TraceRequest(0.0, 10, 3), times_s, failed)) is served


def test_a_part_of_a_trace_takes_so_long_or_is_all_of_it() -> None:
    requests = [TraceRequest(float(place), 100 + place, 100) for place in range(1000)]
    part = first(requests, 2.0, 100.0)
    assert (len(part), part[-1].prompt_tokens, part[-1].arrival_s) == (200, 299, pytest.approx(199 / 2.0))
    assert len(first(requests, 2.0, 5000.0)) == 1000


def test_goodput_is_compared_at_its_best_at_load_1_and_at_the_highest() -> None:
    by_rate = [Measured(stated=10.0 * load, alone=1.0) for load in LOADS[:-1]] + [Measured(stated=7.0, alone=3.0)]
    assert [pick(by_rate) for _, pick in COMPARED] == [10.0 * LOADS[-2], 10.0, 7.0, 3.0]
    assert [pick(by_rate[:1]) for _, pick in COMPARED] == [5.0, 5.0, 5.0, 1.0]


def test_where_all_have_room_all_are_served_well() -> None:
    part = [TraceRequest(2.0 * place, 400, 20) for place in range(20)]
    spec = cluster("a100-llama2-7b", 2, "contract")
    assert measured(part, 40.0, spec, OURS) == measured(part, 40.0, spec, VLLM)
    assert measured(part, 40.0, spec, OURS).stated == pytest.approx(0.5)
