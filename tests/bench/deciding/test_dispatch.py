"""Dispatchers on modelled instances: a quick run, and that predictions pay."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from distkv.bench.deciding import dispatch
from distkv.bench.deciding.dispatch import CASES, POOLS, QUICK, SPEEDS, figures
from distkv.bench.workloads.deciding.dispatch_model import ModelCluster, lognormal_trace
from distkv.sim.trace import TraceRequest
from distkv.types import DispatchName
from tests.bench.quick_run import quick_report


def test_a_quick_run(tmp_path: Path) -> None:
    report = quick_report(dispatch.main, tmp_path)
    variants = ["predicted", "least-loaded", "random"]
    assert [row["variant"] for row in report["results"]] == variants * len(CASES) * len(QUICK.per_s)
    assert len(report["goals"]) == 2 * len(CASES) * len(QUICK.per_s)


def test_a_model_serves_every_request_whole_and_gives_all_memory_back() -> None:
    trace = lognormal_trace(150, 400, 20.0, 3)
    cluster = ModelCluster(POOLS, SPEEDS, "random", 1)
    done = cluster.play(trace)
    assert sorted((one.prompt, one.output) for one in done) == sorted((r.prompt_tokens, r.output_tokens) for r in trace)
    assert all(one.arrival_s < one.first_s <= one.last_s and one.generated == one.output for one in done)
    for one in cluster.instances.values():
        assert (one.used, one.lent, one.running, list(one.waiting)) == (0, 0, [], [])


def test_alone_a_request_takes_what_the_model_says() -> None:
    (one,) = ModelCluster([16384], [1.0], "predicted", 0).play([TraceRequest(1.0, 1000, 11)])
    assert 0.2 < one.first_s - one.arrival_s < 0.22
    assert 0.012 < (one.last_s - one.first_s) / 10 < 0.015


@pytest.mark.slow
def test_predictions_are_better_than_counting_requests_and_than_chance() -> None:
    def means(name: DispatchName) -> list[float]:
        """Of each figure over some traces."""
        traces = [lognormal_trace(200, 300, 3.0, seed) for seed in range(3)]
        plays = (figures(ModelCluster(POOLS, SPEEDS, name, seed).play(trace)) for seed, trace in enumerate(traces))
        return [statistics.fmean(values) for values in zip(*plays, strict=True)]

    _, _, _, token_p99_s, last_s = means("predicted")
    for other in ("least-loaded", "random"):
        *_, others_token_p99_s, others_last_s = means(other)
        assert (token_p99_s < others_token_p99_s, last_s < others_last_s) == (True, True), other
