"""One instance over all GPUs in place of N."""

from __future__ import annotations

import msgspec
import pytest

from distkv.control.performance.model import PerformanceModel
from distkv.errors import ConfigError
from distkv.sim.baselines.single import SingleInstance, as_single, single_of
from distkv.sim.profiles.built_in import built_in, instance, kv_tokens
from distkv.sim.run import simulate
from distkv.sim.spec import Kill, Restart, SimSpec
from tests.sim.timed.parts import profile, spec, trace

NAME = "a100-llama2-7b"
WHOLE = profile(step=tuple(msgspec.structs.replace(one, seconds=one.seconds / 2) for one in profile().step))


def test_it_has_all_gpus_and_the_weights_once() -> None:
    single = single_of(NAME, 32)
    assert single.profile == built_in(f"{NAME}-tp8-pp4")
    shape = instance(NAME).shape
    weights_tokens = shape.weight_bytes / (shape.layers * shape.kv_bytes)
    assert single.kv_tokens > 32 * kv_tokens(NAME) + 31 * weights_tokens
    assert single_of(NAME, 32, network="infiniband").profile != single.profile


def test_gpus_of_an_instance_are_counted() -> None:
    assert single_of("h100-llama2-70b", 2).profile == built_in("h100-llama2-70b-tp8")
    assert single_of("h100-llama2-70b-tp8", 4).profile == built_in("h100-llama2-70b-tp8-pp4")


def test_pools_that_were_given_are_added_up() -> None:
    assert single_of(NAME, 4, kv_tokens=10_000).kv_tokens == 40_000


@pytest.mark.parametrize("instances", [3, 12, 24])
def test_gpus_that_do_not_divide_are_refused(instances: int) -> None:
    """24 A100s would be three stages of 32 layers."""
    with pytest.raises(ConfigError, match=rf"one LLaMA2-7B takes 1, 2, 4, 8 GPUs of a host, or .*, not {instances}"):
        single_of(NAME, instances)


def test_what_no_instance_holds_is_served_by_the_one() -> None:
    run = spec(policy="single", single=SingleInstance(WHOLE, 3200))
    (outcome,) = simulate(trace((0.0, 2000, 20)), run).outcomes
    assert not outcome.failed and len(outcome.times_s) == 20
    assert outcome.times_s[-1] - outcome.times_s[-2] == pytest.approx(PerformanceModel(WHOLE).step_s(1, 2019))


def test_memory_is_seen_as_that_of_one() -> None:
    result = simulate(trace((0.0, 600, 100)), spec(policy="single", single=SingleInstance(WHOLE, 3200)))
    assert {len(one.own) for one in result.samples} == {1}
    assert max(one.own[0] for one in result.samples) >= 600 // 16 and result.samples[0].free[0] == 200


def test_it_batches_as_many_as_all_together() -> None:
    settings = {"max_num_seqs": 4}
    whole = as_single(spec(instances=3, policy="single", single=SingleInstance(WHOLE, 4800), settings=settings))
    assert (whole.instances, whole.settings["max_num_seqs"]) == (1, 12)
    assert as_single(spec(policy="single", single=SingleInstance(WHOLE, 3200))).settings["max_num_seqs"] == 128


def test_what_fails_of_any_fails_of_the_whole() -> None:
    faults = (Kill(1.0, "i1"), Restart(2.0, "i1"))
    run = spec(policy="single", single=SingleInstance(WHOLE, 3200), faults=faults)
    outcomes = simulate(trace((0.0, 600, 400), (5.0, 600, 4)), run).outcomes
    assert outcomes[0].failed == "its instance was lost" and not outcomes[1].failed


def test_without_its_profile_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="single: a profile of N instances does not say"):
        SimSpec(instances=2, kv_tokens=1600, profile=profile(), policy="single")
