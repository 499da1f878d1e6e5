"""Attention of one token over several GPUs, by what travels."""

from __future__ import annotations

import pytest

from distkv.sim.baselines.attention import dist_attention_s, ring_attention_s, tensor_parallel_s
from distkv.sim.profiles.hardware import GPUS
from distkv.sim.profiles.shapes import SHAPES

A100, SHAPE = GPUS["a100"], SHAPES["llama2-13b"]
LONG = 10**9


def test_all_read_keys_and_values_once_when_there_is_one_gpu() -> None:
    alone = tensor_parallel_s(A100, SHAPE, 100_000, 1)
    assert dist_attention_s(A100, SHAPE, 100_000, 1) == alone == ring_attention_s(A100, SHAPE, 100_000, 1)
    assert alone == pytest.approx(100_000 * SHAPE.kv_bytes / 1.7e12, rel=0.01)


@pytest.mark.parametrize("name", GPUS)
def test_long_sequences_are_divided_and_only_a_ring_pays_by_the_token(name: str) -> None:
    gpu = GPUS[name]
    alone = tensor_parallel_s(gpu, SHAPE, LONG, 1)
    assert tensor_parallel_s(gpu, SHAPE, LONG, 4) == pytest.approx(alone / 4, rel=1e-3)
    assert dist_attention_s(gpu, SHAPE, LONG, 4) == pytest.approx(alone / 4, rel=1e-3)
    travelling = 3 * gpu.hbm_bytes_per_s / gpu.nvlink.bytes_per_s
    assert ring_attention_s(gpu, SHAPE, LONG, 4) == pytest.approx(alone / 4 * (1 + travelling), rel=1e-3)


def test_what_a_query_and_its_partials_cost_does_not_grow_with_the_sequence() -> None:
    """000 §6.5: the additional latency is almost constant."""
    added = [
        dist_attention_s(A100, SHAPES["llama2-70b"], tokens, 2, 4)
        - tensor_parallel_s(A100, SHAPES["llama2-70b"], tokens, 8)
        for tokens in (300_000, 600_000)
    ]
    assert 0 < added[0] == pytest.approx(added[1])


def test_each_further_creditor_sends_a_partial_more() -> None:
    """The same part of a sequence for each: only what travels differs."""
    seconds = [dist_attention_s(A100, SHAPE, 10_000 * instances, instances) for instances in (2, 3, 4)]
    first, second = seconds[1] - seconds[0], seconds[2] - seconds[1]
    assert 0 < first == pytest.approx(second)
    assert first == pytest.approx((5120 * 2 + 40 * 129 * 4) / 230e9)
