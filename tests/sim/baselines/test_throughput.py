"""Instances that share nothing, with as many requests of one length as fit."""

from __future__ import annotations

import pytest

from distkv.control.performance.model import PerformanceModel
from distkv.sim.baselines.throughput import largest_batch, separate_tokens_per_s
from distkv.sim.profiles.built_in import built_in, kv_tokens, over_all

NAME = "a100-llama2-7b"


def test_as_many_requests_decode_as_whole_blocks_hold() -> None:
    profile = built_in(NAME)
    assert largest_batch(profile, 1600, 100) == 14  # 100 blocks, 7 each
    assert largest_batch(profile, 1600, 1600) == 1
    assert largest_batch(profile, 1600, 1601) == 0


def test_instances_that_share_nothing_decode_side_by_side_what_each_can_hold() -> None:
    profile, pool = built_in(NAME), kv_tokens(NAME)
    batch = pool // 1024
    alone = batch / PerformanceModel(profile).step_s(batch, batch * 1024)
    assert separate_tokens_per_s(profile, pool, 1024, 32) == pytest.approx(32 * alone)
    assert separate_tokens_per_s(profile, pool, pool + 1, 32) == 0


def test_one_instance_over_all_gpus_holds_what_no_single_one_does() -> None:
    """000 §6.1: up to 1,900K tokens over 32 GPUs."""
    name = over_all(NAME, 32)
    assert separate_tokens_per_s(built_in(name), kv_tokens(name), 1_900_000) > 0


def test_a_pipeline_with_fewer_sequences_than_stages_attends_in_some_at_a_time() -> None:
    name = over_all(NAME, 32)
    profile, pool = built_in(name), kv_tokens(name)
    model = PerformanceModel(profile)
    for length, batch in ((pool // 8 - 16, 8), (pool // 4 - 16, 4), (pool // 2 - 16, 2), (pool - 16, 1)):
        seconds = model.step_s(batch, 0) + max(1, 4 // batch) * model.attention_s(batch * length)
        assert separate_tokens_per_s(profile, pool, length, stages=4) == pytest.approx(batch / seconds)
