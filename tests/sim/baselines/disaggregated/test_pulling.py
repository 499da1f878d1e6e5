"""Prompts here, tokens there. Of PROFILE an rBlock of 16 tokens has 160 kB, and links read 1 GB/s."""

from __future__ import annotations

import pytest

from distkv.control.performance.model import PerformanceModel
from distkv.errors import ConfigError
from distkv.sim.baselines.cluster import BaselineCluster
from distkv.sim.baselines.disaggregated.divided import splits
from distkv.sim.baselines.disaggregated.pulling import Pulling
from distkv.sim.run import simulate
from tests.sim.baselines.disaggregated.parts import divided, quiet
from tests.sim.baselines.parts import loaded
from tests.sim.timed.parts import LINK, PROFILE, spec, trace
from tests.sim.timed.test_run import plain

MODEL = PerformanceModel(PROFILE)


def pulled(prefills: int, **fields: object) -> BaselineCluster:
    return divided(Pulling, prefills, **fields)


def test_keys_and_values_travel_once() -> None:
    cluster = pulled(1, message_s=0.001)
    cluster.play(trace((0.0, 100, 3)), quiet)
    (outcome,) = cluster.outcomes
    first_s = 4 * 0.001 + MODEL.prefill_s(100)
    # To the instance that decodes, then 7 rBlocks, which it reads.
    second_s = first_s + 2 * 0.001 + 7 * 160_000 / 1e9 + LINK.round_trip_s + MODEL.step_s(1, 101)
    assert list(outcome.times_s) == pytest.approx([first_s, second_s, second_s + MODEL.step_s(1, 102)])
    prefilling, decoding = cluster.instances
    assert (prefilling.counters.generation_tokens, decoding.counters.generation_tokens) == (1, 2)
    assert decoding.counters.kv_bytes == 7 * 160_000 and decoding.counters.moved_blocks == 7
    assert prefilling.free == decoding.free == 100


def test_decodes_are_not_disturbed_by_prompts() -> None:
    cluster = pulled(1)
    cluster.play(trace((0.0, 100, 200), (1.0, 1500, 1)), quiet)
    first, second = cluster.outcomes
    each = [after - before for before, after in zip(first.times_s[1:], first.times_s[2:], strict=False)]
    assert max(each) < 1.01 * min(each)
    assert second.first_s == pytest.approx(MODEL.prefill_s(1500)), "it needs nobody who decodes"


def test_what_no_decoding_instance_has_memory_for_stays_where_it_is() -> None:
    """Its prompt takes 61 rBlocks, of which 39 are free where it would decode, and keeps another one waiting."""
    cluster = pulled(1)
    cluster.play(trace((0.0, 960, 200), (0.0, 960, 10), (0.0, 960, 10)), quiet)
    first, second, third = cluster.outcomes
    assert second.times_s[1] > first.times_s[-1] > second.times_s[0]
    assert third.times_s[0] > first.times_s[-1]


def test_who_is_preempted_is_computed_again_where_it_decodes() -> None:
    cluster = pulled(1)
    cluster.play(trace((0.0, 700, 150), (0.0, 700, 150)), quiet)
    prefilling, decoding = cluster.instances
    assert decoding.counters.preemptions >= 1 and not prefilling.counters.preemptions
    assert decoding.counters.moved_blocks == 2 * 44
    assert all(len(one.times_s) == 150 for one in cluster.outcomes)


def test_who_is_computed_again_lets_those_behind_it_be_read() -> None:
    """One that was preempted begins anew, in the same step in which there is memory for the next."""
    at_once = [(0.0, 1447, 77), (0.0, 1, 52), (0.0, 9, 99), (0.0, 285, 108)]
    requests = [*at_once, (0.02, 734, 186), (0.64, 1, 49), (1.12, 1481, 96), (1.24, 187, 55), (1.97, 787, 23)]
    cluster = pulled(1, most_s=100.0)
    cluster.play(trace(*requests), quiet)
    assert not any(one.failed for one in cluster.outcomes) and cluster.instances[1].counters.preemptions
    assert [len(one.times_s) for one in cluster.outcomes] == [output for _, _, output in requests]
    assert [one.free for one in cluster.instances] == [100, 100]


def test_hosts_have_both_kinds_and_links_within_one_are_used() -> None:
    cluster = pulled(2, instances=8, instances_per_host=4)
    placed = Pulling(2, cluster)
    assert [one.name for one in placed.divided.prefilling] == ["i0", "i4"]
    cluster.play(loaded(20, 10.0), quiet)
    assert all(cluster[name].counters.moved_blocks for name in ("i1", "i5"))
    far = pulled(1, instances=3, instances_per_host=1)
    far.play(trace((0.0, 100, 3)), quiet)
    assert not far.outcomes[0].failed


def test_a_few_are_tried_and_the_best_is_said() -> None:
    assert [splits(count) for count in (2, 3, 4, 8, 32)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4, 6], [4, 8, 16, 24]]
    requests = trace(*((0.1 * number, 1400, 3) for number in range(20)))
    best = simulate(requests, spec(policy="prefill-decode", instances=4))
    given_ = simulate(requests, spec(policy="prefill-decode", instances=4, prefill_instances=1))
    assert best.prefill_instances in (2, 3) and given_.prefill_instances == 1
    assert sum(one.times_s[-1] for one in best.outcomes) < sum(one.times_s[-1] for one in given_.outcomes)


def test_it_is_the_same_each_time() -> None:
    run = spec(policy="prefill-decode", instances=3, message_s=2e-4)
    assert plain(simulate(loaded(30, 6.0), run)) == plain(simulate(loaded(30, 6.0), run))


def test_instances_that_cannot_be_divided_so_are_refused() -> None:
    with pytest.raises(ConfigError, match="instances: prefill-decode divides them: it needs at least 2"):
        spec(policy="prefill-decode", instances=1)
    with pytest.raises(ConfigError, match="prefill_instances: expected 1 to 3, for the others decode, got 4"):
        spec(policy="prefill-decode", instances=4, prefill_instances=4)
