"""Profiles with other times."""

from __future__ import annotations

import pytest

from distkv.control.performance.model import PerformanceModel
from distkv.sim.profiles.built_in import built_in
from distkv.sim.profiles.sensitivity import PARTS, Part, scaled


def test_slower_hardware_takes_longer_for_everything() -> None:
    profile = built_in("a100-llama2-13b")
    model, slower = PerformanceModel(profile), PerformanceModel(scaled(profile, 1.2))
    assert slower.step_s(32, 50_000) == pytest.approx(1.2 * model.step_s(32, 50_000))
    assert slower.prefill_s(2048, 10_000) == pytest.approx(1.2 * model.prefill_s(2048, 10_000))
    assert slower.remote_s(20_000, 4, link="network") == pytest.approx(1.2 * model.remote_s(20_000, 4, link="network"))
    assert slower.fetch_s(1, 20_000) == pytest.approx(1.2 * model.fetch_s(1, 20_000))


@pytest.mark.parametrize("part", PARTS)
def test_one_part_leaves_the_others_alone(part: Part) -> None:
    profile = built_in("a100-llama2-13b")
    changed = scaled(profile, 0.8, (part,))
    assert changed != profile
    others: tuple[Part, ...] = tuple(one for one in PARTS if one != part)
    assert scaled(profile, 0.8) == scaled(changed, 0.8, others)


def test_no_time_at_all_is_no_factor() -> None:
    with pytest.raises(ValueError, match="more than 0"):
        scaled(built_in("a100-llama2-13b"), 0)
