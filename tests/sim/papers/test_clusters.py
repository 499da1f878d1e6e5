"""What a cluster reaches while requests arrive."""

from __future__ import annotations

import pytest

from distkv.control.performance.model import PerformanceModel
from distkv.sim.papers.clusters import by_vllm, cluster, reach, reach_by_vllm
from distkv.sim.profiles.built_in import kv_tokens
from distkv.sim.trace import TraceRequest

NAME = "a100-llama2-7b"


def test_a_cluster_has_the_memory_and_the_hosts_of_its_profile() -> None:
    spec = cluster("a100-llama2-70b", 4, "contract", seed=3)
    assert (spec.kv_tokens, spec.instances_per_host, spec.network_shared, spec.seed) == (
        kv_tokens("a100-llama2-70b"), 2, True, 3,
    )  # fmt: skip
    assert spec.single is None and not cluster(NAME, 2, "none", network="infiniband").network_shared


def test_one_over_all_gpus_has_their_profile() -> None:
    single = cluster(NAME, 16, "single").single
    assert single is not None and single.profile.device.startswith("16 x") and single.kv_tokens > 16 * kv_tokens(NAME)


def test_tokens_are_counted_while_requests_arrive() -> None:
    """One that decodes all the time; the last arrives after 10 s. The other that ends waited for its prompt too."""
    trace = [TraceRequest(0.0, 16, 2000), TraceRequest(0.0, 16, 10), TraceRequest(10.0, 16, 16)]
    found = reach(cluster(NAME, 1, "none"), trace)
    step_s = PerformanceModel(cluster(NAME, 1, "none").profile).step_s(1, 500)
    assert found.tokens_per_s == pytest.approx(1 / step_s, rel=0.05)
    assert step_s < found.per_token_s < 2 * step_s


def test_vllm_reaches_the_same_where_memory_suffices() -> None:
    trace = [TraceRequest(0.1 * index, 200, 100) for index in range(100)]
    ours, theirs = reach(cluster(NAME, 2, "none"), trace), reach_by_vllm(cluster(NAME, 2, "none"), trace)
    assert theirs.tokens_per_s == pytest.approx(ours.tokens_per_s, rel=0.03)
    assert theirs.per_token_s == pytest.approx(ours.per_token_s, rel=0.1)


def test_vllm_on_all_gpus_is_one_instance() -> None:
    """A prompt that no instance of two has memory for."""
    trace = [TraceRequest(0.0, 150_000, 10), TraceRequest(60.0, 16, 1)]
    assert reach_by_vllm(cluster(NAME, 2, "none"), trace).tokens_per_s == 0
    assert reach_by_vllm(cluster(NAME, 2, "single"), trace).tokens_per_s == pytest.approx(10 / 60)


def test_of_the_ways_to_batch_and_to_dispatch_the_best_counts() -> None:
    """One document and short prompts on two instances; alone there is nothing to dispatch."""
    trace = [TraceRequest(0.0, 40_000, 50), *(TraceRequest(0.05 * index, 300, 40) for index in range(1, 100))]
    spec = cluster(NAME, 2, "none", most_s=trace[-1].arrival_s)
    tokens = [sum(len(one.times_s) for one in outcomes) for outcomes in by_vllm(trace, spec)]
    assert len(tokens) == 4 and len(set(tokens)) > 1
    assert reach_by_vllm(spec, trace).tokens_per_s == pytest.approx(max(tokens) / trace[-1].arrival_s)
    assert len(list(by_vllm(trace, cluster(NAME, 2, "single", most_s=1.0)))) == 2
