"""Hardware around the one that is assumed."""

from __future__ import annotations

import pytest

from distkv.control.performance.model import PerformanceModel
from distkv.sim.papers.sensitivity import gpu_range, gpus_around, profile_range, profiles_around
from distkv.sim.profiles.built_in import built_in
from distkv.sim.profiles.hardware import GPUS

PROFILE = built_in("a100-llama2-7b")


def test_one_part_changes_at_a_time_both_ways() -> None:
    assert len(set(map(repr, gpus_around(GPUS["a100"])))) == 8
    assert len(set(map(repr, profiles_around(PROFILE)))) == 8


def test_a_ratio_ranges_over_what_parts_make_of_it() -> None:
    assert gpu_range(lambda gpu: gpu.hbm_bytes_per_s / 1e12, GPUS["a100"]) == pytest.approx(
        (1.7 / 1.2, 1.7 / 0.8), 1e-5
    )
    assert gpu_range(lambda gpu: gpu.flops_per_s, GPUS["a100"]) == (271.2e12, 271.2e12)
    step_s = PerformanceModel(PROFILE).step_s(1, 0)
    found = profile_range(lambda one: PerformanceModel(one).step_s(1, 0) / step_s, PROFILE)
    assert found == pytest.approx((0.8, 1.2))
