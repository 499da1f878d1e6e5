"""Figures of 004: stages of requests, by hand and by their sums."""

from __future__ import annotations

import pytest

from distkv.control.performance.model import PerformanceModel
from distkv.sim.baselines.disaggregated.pulling import Pulling
from distkv.sim.baselines.disaggregated.pushing import Pushing
from distkv.sim.papers.kvdirect.configurations import Workload
from distkv.sim.papers.kvdirect.serving import Point, over
from distkv.sim.papers.kvdirect.stages import (
    PROFILE,
    Place,
    Stages,
    by_vllm,
    divided,
    high,
    mean,
    played,
    shared,
    stages_of,
)
from distkv.sim.profiles.built_in import built_in
from distkv.sim.profiles.shapes import SHAPES
from distkv.sim.trace import TraceRequest

MODEL = PerformanceModel(built_in(PROFILE))
MESSAGES_S = 1e-3
"""More than what messages take, less than anything that is computed."""


def test_the_model_is_that_of_the_paper() -> None:
    """§5.1: 123B parameters, 352 KB of KV memory for each token."""
    shape = SHAPES["mistral-large"]
    assert shape.weight_bytes / 2 == pytest.approx(123e9, rel=0.005)
    assert shape.layers * shape.kv_bytes == 352 * 1024


@pytest.mark.parametrize("place", [Pulling, Pushing])
def test_stages_of_one_request_alone(place: Place) -> None:
    """16K tokens are read from 8 GPUs at 22.23 GB/s each; pushed, those of one layer of 88 are left."""
    (found,) = divided(1, 1, place, [TraceRequest(0.0, 16_384, 101)])
    reading_s = 16_384 * 352 * 1024 / (8 * 22.23e9)
    assert found.queue_s + found.memory_s == pytest.approx(0.0, abs=2 * MESSAGES_S)
    assert found.prefill_s == pytest.approx(MODEL.prefill_s(16_384), rel=0.01)
    assert found.transfer_s == pytest.approx(reading_s / (88 if place is Pushing else 1), abs=MESSAGES_S)
    assert found.decode_s == pytest.approx(sum(MODEL.step_s(1, 16_384 + place) for place in range(1, 101)), rel=0.01)
    assert found.between_s == pytest.approx(found.decode_s / 100)


@pytest.mark.parametrize("place", [Pulling, Pushing])
def test_stages_are_all_of_the_time(place: Place) -> None:
    """Of requests that wait for each other, and for memory where they decode: what they take is when the last token
    came."""
    requests = [TraceRequest(0.1 * number, 120_000, 1 + 4000 * (number % 3)) for number in range(20)]
    cluster = played(1, 1, place, requests)
    found = stages_of(cluster)
    for one, stages in zip(cluster.served, found, strict=True):
        parts = stages.queue_s, stages.prefill_s, stages.memory_s, stages.transfer_s, stages.decode_s
        assert min(parts) >= 0 and sum(parts) == stages.total_s == pytest.approx(one.outcome.times_s[-1])
        assert stages.tokens == one.outcome.request.output_tokens
    assert max(one.memory_s for one in found) > 1.0


@pytest.mark.parametrize("place", [Pulling, Pushing])
def test_who_comes_faster_than_prompts_are_computed_waits_for_that(place: Place) -> None:
    requests = Workload(8192, 128).requests(12, seed=0)
    queued = [one.queue_s for one in divided(1, 1, place, requests)]
    assert queued[-1] > queued[0] + 1.0, "they come faster than one computes prompts"
    assert divided(3, 1, place, requests)[-1].queue_s < queued[-1] / 2


def test_a_request_of_one_token_is_not_decoded() -> None:
    (only,) = divided(1, 1, Pulling, [TraceRequest(0.0, 1000, 1)])
    assert (only.memory_s, only.transfer_s, only.decode_s, only.between_s) == (0.0, 0.0, 0.0, None)


def test_whole_prompts_hold_up_who_decodes_and_chunks_do_less() -> None:
    """One decodes when a prompt of 100K tokens comes, which takes eight seconds."""
    requests = [TraceRequest(0.0, 100, 600), TraceRequest(1.0, 100_000, 2)]
    alone, whole, chunked = (
        found[0].total_s
        for found in (
            by_vllm(requests[:1], chunked=False),
            by_vllm(requests, chunked=False),
            by_vllm(requests, chunked=True),
        )
    )
    assert whole - alone == pytest.approx(MODEL.prefill_s(100_000), rel=0.05)
    assert chunked > alone
    assert shared(2, requests)[0].total_s == pytest.approx(alone, rel=0.02), "the other instance computes it"


def test_ratios_are_of_the_ninth_of_ten() -> None:
    found = [Stages(0.0, float(seconds), 0.0, 0.0, 10.0, 11) for seconds in range(11)]
    assert high(found, lambda one: one.prefill_s) == 9.0 and mean(found, lambda one: one.between_s) == 1.0
    half = [Stages(0.0, seconds / 2, 0.0, 0.0, 5.0, 11) for seconds in range(11)]
    assert over([Point(1.0, (half,))], [Point(1.0, (found,))], lambda one: one.total_s) == [0.5]
