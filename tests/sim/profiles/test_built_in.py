"""Built-in profiles against figures that others measured."""

from __future__ import annotations

import pytest

from distkv.control.performance.model import PerformanceModel
from distkv.errors import ConfigError
from distkv.sim.profiles.built_in import (
    NAMES,
    built_in,
    instance,
    instances_per_host,
    kv_tokens,
    network_shared,
    over_all,
)
from distkv.wire.messages.profile import Profile


@pytest.mark.parametrize("name", NAMES)
def test_every_profile_predicts_more_time_for_more_work(name: str) -> None:
    profile = built_in(name)
    model = PerformanceModel(profile)
    steps = [model.step_s(batch, batch * 500) for batch in (1, 8, 64, 512, 4096)]
    assert steps == sorted(steps) and len(set(steps)) == 5
    alone = model.step_s(8, 100_000)
    assert alone < model.step_s(8, 100_000, remote_tokens=90_000, link="network")
    assert model.prefill_s(2048) < model.prefill_s(2048, 100_000) < model.prefill_s(4096, 100_000)
    assert kv_tokens(name) > 50_000


@pytest.mark.parametrize(
    ("name", "tokens_per_s"),
    [
        ("a100-llama2-7b", 104.9),
        ("a100-llama2-7b-tp2", 168.84),
        ("a100-llama2-7b-tp4", 254.02),
        ("a100-llama2-7b-tp8", 328.43),
        ("a100-llama2-70b-tp2", 21.32),
        ("a100-llama2-70b-tp4", 38.01),
        ("a100-llama2-70b-tp8", 62.50),
    ],
)
def test_one_sequence_decodes_as_fast_as_gpt_fast_does(name: str, tokens_per_s: float) -> None:
    """The all-reduces that its table has within the layer's other costs are on top of these here (001 §2.2)."""
    step_s = PerformanceModel(built_in(name)).step_s(1, 100)
    assert 0.75 * tokens_per_s < 1 / step_s < 1.03 * tokens_per_s


def test_eight_gpus_have_a_third_of_the_efficiency_of_one() -> None:
    """001 §2.2: of the layers without attention, LLaMA2-7B on A100s, one request."""
    one, eight = instance("a100-llama2-7b"), instance("a100-llama2-7b-tp8")
    assert one.layer_s(1) / (8 * eight.layer_s(1)) == pytest.approx(1 / 3, rel=0.1)


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("a100-llama2-7b", 108_000),  # 000 §6.3
        ("a100-llama2-7b", 7351 * 16),  # vllm-project/vllm#2031
        ("a100-llama2-13b", 140_000),  # 000 Table 2
        ("a100-llama2-70b", 450_000),  # 000 §6.1
    ],
)
def test_as_many_kv_tokens_fit_as_the_papers_had_room_for(name: str, tokens: int) -> None:
    assert kv_tokens(name) == pytest.approx(tokens, rel=0.06)


def test_shapes_have_the_parameters_and_kv_bytes_that_are_known_of_them() -> None:
    shapes = [instance(f"a100-{model}").shape for model in ("llama2-7b", "llama2-13b", "llama2-70b")]
    assert [one.weight_bytes / 2e9 for one in shapes] == pytest.approx([6.738, 13.016, 68.98], rel=1e-3)
    per_token = [one.layers * one.kv_bytes for one in shapes]
    assert per_token == [524_288, 819_200, 327_680]  # 000 Table 1: 8.19 GB for 10k tokens of 13B


def test_the_curve_bends_where_arithmetic_begins_to_limit() -> None:
    one = instance("a100-llama2-7b")
    model = PerformanceModel(built_in("a100-llama2-7b"))
    for batch in (1, 3, 100, 150, 200, 1000, 3000):
        assert model.step_s(batch, 0) == pytest.approx(one.step_s(batch), rel=0.02)
    assert model.step_s(128, 0) == model.step_s(1, 0)


def test_a_pipeline_over_hosts_pays_for_its_network() -> None:
    """vLLM-single of 000 Fig. 8: 32 A100s as pp4tp8."""
    name = "a100-llama2-7b-tp8-pp4"
    ethernet, infiniband = built_in(name), built_in(name, network="infiniband")
    assert _step_s(ethernet, 64) > _step_s(infiniband, 64) > _step_s(built_in("a100-llama2-7b-tp8"), 16)
    assert kv_tokens(name) > 32 * kv_tokens("a100-llama2-7b")
    attention = [built_in(one).attention[0].seconds for one in ("a100-llama2-7b", name)]
    assert attention[0] == pytest.approx(32 * attention[1])


def test_hosts_share_their_ethernet_and_gpus_have_their_own_nvlink() -> None:
    links = built_in("a100-llama2-70b").links
    assert links["network"].bytes_per_s == 125e6
    assert links["host"].bytes_per_s == 4 * 230e9
    assert built_in("h100-llama2-70b").links["network"].read_bytes_per_s == pytest.approx(4 * 22.23e9)
    assert network_shared("a100-llama2-70b") and not network_shared("h100-llama2-70b")
    assert not network_shared("a100-llama2-70b", network="infiniband")


def test_a_host_has_eight_gpus() -> None:
    assert [instances_per_host(f"a100-llama2-{size}") for size in ("7b", "13b", "70b")] == [8, 4, 2]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a100-lama2-7b", "no built-in profile 'a100-lama2-7b' .*h200.-.*did you mean a100-llama2-7b"),
        ("a100-llama2-70b-tp3", "tp is 1 or 2 or 4 or 8, not 3"),
        ("a100-llama2-7b-tp8-pp3", "pp divides 32 layers, 3 does not"),
        ("a100-llama2-7b-pp0", "pp divides 32 layers, 0 does not"),
        ("", "there is no built-in profile ''"),
    ],
)
def test_a_name_of_nothing_is_refused(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        built_in(name)


@pytest.mark.parametrize(("gpus", "suffix"), [(2, "tp2"), (4, "tp4"), (8, "tp8"), (16, "tp8-pp2"), (32, "tp8-pp4")])
def test_one_instance_over_all_gpus_is_divided_as_in_the_paper(gpus: int, suffix: str) -> None:
    """000 Fig. 8."""
    assert over_all("a100-llama2-7b", gpus) == f"a100-llama2-7b-{suffix}"


@pytest.mark.parametrize("gpus", [0, 3, 12])
def test_gpus_that_cannot_be_divided_are_refused(gpus: int) -> None:
    with pytest.raises(ConfigError):
        over_all("a100-llama2-7b", gpus)


def _step_s(profile: Profile, batch: int) -> float:
    return PerformanceModel(profile).step_s(batch, 0)
