"""Figures of simulated traces, by hand."""

from __future__ import annotations

from array import array

import pytest

from distkv.bench.simulation.figures import at_scale, figures
from distkv.bench.simulation.plot import owners_of
from distkv.bench.simulation.sweep import sweep
from distkv.control.performance.model import PerformanceModel
from distkv.sim.alone import alone
from distkv.sim.outcome import Outcome, Unloaded
from distkv.sim.run import SimResult
from distkv.sim.timed.memory import MemorySample
from distkv.sim.trace import TraceRequest
from distkv.wire.messages.counters import Counters
from tests.sim.timed.parts import PROFILE, spec, trace


def sample(
    own: tuple[int, ...], lent: tuple[int, ...], free: tuple[int, ...], *loans: tuple[int, int, int]
) -> MemorySample:
    none = array("i", [0] * len(own))
    return MemorySample(0.0, array("i", own), array("i", lent), array("i", free), none, none, loans)


def test_imbalance_is_what_the_fullest_pool_has_more_than_all_on_average() -> None:
    assert sample((8, 2), (0, 0), (2, 8)).imbalance == pytest.approx(0.8 - 0.5)
    assert sample((8, 2), (0, 6), (2, 2)).imbalance == pytest.approx(0.0)
    assert sample((8, 0), (0, 0), (2, 0)).imbalance == 0.0  # the other one is dead
    assert sample((0,), (0,), (0,)).imbalance == 0.0


def test_figures_of_a_trace() -> None:
    requests = trace((0.0, 100, 3), (1.0, 100, 2), (2.0, 900, 5))
    outcomes = (
        Outcome(requests[0], [1.0, 1.5, 2.0]),
        Outcome(requests[1], [2.0, 4.0]),
        Outcome(requests[2], [], "it needs more memory than there is"),
    )
    samples = tuple(sample((used, 0), (0, 0), (10 - used, 10)) for used in (0, 2, 4))
    counters = Counters(attended_tokens=200, remote_attended_tokens=50)
    result = SimResult(outcomes, samples, counters, 5.0, ())
    found = figures(result, spec(policy="none"), 2.0, Unloaded(1.0, 0.0, 0.5))
    assert (found.policy, found.rate_scale, found.completed, found.refused) == ("none", 2.0, 2, 1)
    assert found.tokens_per_s == pytest.approx(5 / 5.0) and found.goodput_rps == pytest.approx(1 / 5.0)
    assert found.ttft_p50_s == 1.5 and found.tpot_p99_s == 2.0
    assert found.imbalance_p95 == pytest.approx(0.2) and found.remote_share == 0.25


def test_a_rate_is_in_times_the_traces() -> None:
    requests = trace((10.0, 100, 3), (11.0, 100, 2), (14.0, 90, 5))
    assert [one.arrival_s for one in at_scale(requests, 2.0)] == pytest.approx([0.0, 0.5, 2.0])
    assert at_scale(requests[:1], 2.0) == trace((0.0, 100, 3))


def test_requests_alone_take_what_the_model_says() -> None:
    found = alone(trace((0.0, 101, 2), (0.0, 50, 1), (0.0, 201, 3)), spec(kv_tokens=160))
    model = PerformanceModel(PROFILE)
    assert found.per_token_s == pytest.approx(model.step_s(1, 202), rel=0.01)
    assert found.first_of_s(TraceRequest(0.0, 101, 2)) == pytest.approx(model.prefill_s(101), rel=0.01)
    assert alone(trace((0.0, 50, 1)), spec()).per_token_s == pytest.approx(model.step_s(1, 51))


def test_each_policy_is_played_at_each_rate() -> None:
    told: list[tuple[str, float, int]] = []
    requests = trace((0.0, 100, 10), (1.5, 1700, 10))
    played = list(sweep(requests, spec(), ("none", "contract"), (1.0, 0.5), lambda *now: told.append(now)))
    assert [(one.figures.policy, one.figures.rate_scale) for one in played] == [
        ("none", 1.0), ("none", 0.5), ("contract", 1.0), ("contract", 0.5),
    ]  # fmt: skip
    assert [(one.figures.completed, one.figures.refused) for one in played] == [(1, 1), (1, 1), (2, 0), (2, 0)]
    assert told[:2] == [("none, rate x 1", 0.0, 0), ("none, rate x 1", 1.0, 1)]
    assert told[-1][2] == 7


def test_whose_blocks_are_in_a_pool() -> None:
    samples = [sample((3, 1), (2, 0), (5, 9), (0, 1, 2)), sample((4, 1), (0, 0), (6, 9))]
    assert owners_of(samples, 0) == {"i0": [3, 4], "i1": [2, 0]}
    assert owners_of(samples, 1) == {"i1": [1, 1]}
