"""What Prometheus reads, checked by its own parsers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from distkv.clock import ManualClock
from distkv.gateway.metrics.cluster_metrics import ClusterCollector
from distkv.gateway.metrics.request_metrics import Fate, Metrics
from distkv.types import Chunk
from distkv.wire.messages.common import Member
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.to_client import InstanceStatus, SlotCounts, Status
from tests.gateway.harness import MODEL, ends, silence

Start = Callable[..., Any]
OPENMETRICS = {"accept": "application/openmetrics-text; version=1.0.0"}
VLLM = {
    "distkv:num_requests_running": "gauge",
    "distkv:num_requests_waiting": "gauge",
    "distkv:kv_cache_usage_perc": "gauge",
    "distkv:time_to_first_token_seconds": "histogram",
    "distkv:inter_token_latency_seconds": "histogram",
    "distkv:e2e_request_latency_seconds": "histogram",
    "distkv:request_queue_time_seconds": "histogram",
    "distkv:time_per_output_token_seconds": "histogram",
    "distkv:request_time_per_output_token_seconds": "histogram",
    "distkv:request_prefill_time_seconds": "histogram",
    "distkv:request_decode_time_seconds": "histogram",
    "distkv:request_inference_time_seconds": "histogram",
    "distkv:request_params_max_tokens": "histogram",
    "distkv:request_prompt_tokens": "histogram",
    "distkv:request_generation_tokens": "histogram",
    "distkv:prompt_tokens": "counter",
    "distkv:generation_tokens": "counter",
    "distkv:num_preemptions": "counter",
    "distkv:request_success": "counter",
}


async def scrape(gateway: Any) -> tuple[dict[str, str], dict[tuple[str, str], float]]:
    """(type by name, value by sample name and its labels but the model's) in both formats, which must agree."""
    answer = await gateway.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    plain = list(parse(answer.text))
    answer = await gateway.http.get("/metrics", headers=OPENMETRICS)
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = list(parse_openmetrics(answer.text))
    kinds = {family.name: family.type for family in families}
    assert kinds == {family.name: family.type for family in plain if not family.name.endswith("_created")}
    found = {}
    for family in families:
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name != "model_name"}
            assert sample.labels.get("model_name", MODEL) == MODEL
            found[sample.name, ",".join(f"{name}={value}" for name, value in sorted(labels.items()))] = sample.value
    return kinds, found


async def test_names_and_types(start: Start) -> None:
    gateway = await start()
    await gateway.complete()
    kinds, _ = await scrape(gateway)
    assert kinds.items() >= VLLM.items()
    assert all(name.startswith(("distkv:", "process_")) for name in kinds)


async def test_requests_are_measured(start: Start) -> None:
    gateway = await start()
    await gateway.complete([1, 2, 3], max_tokens=4)
    await gateway.complete([[1], [2]], max_tokens=2)
    await gateway.complete([1], max_tokens="wrong")
    _, found = await scrape(gateway)
    assert found["distkv:prompt_tokens_total", ""] == 5
    assert found["distkv:generation_tokens_total", ""] == 8
    assert found["distkv:request_success_total", "finished_reason=length"] == 3
    assert found["distkv:request_success_total", "finished_reason=stop"] == 0
    assert found["distkv:time_to_first_token_seconds_count", ""] == 3
    assert found["distkv:inter_token_latency_seconds_count", ""] <= 5, "chunks that wait together come as one"
    assert found["distkv:e2e_request_latency_seconds_count", ""] == 3
    assert (
        found["distkv:request_queue_time_seconds_count", ""],
        found["distkv:request_queue_time_seconds_sum", ""],
    ) == (3, 0.75)
    assert found["distkv:request_prompt_tokens_sum", ""] == 5
    assert found["distkv:request_generation_tokens_bucket", "le=2.0"] == 2
    assert found["distkv:http_requests_total", "method=POST,path=/v1/completions,status=200"] == 2
    assert found["distkv:http_requests_total", "method=POST,path=/v1/completions,status=400"] == 1


def test_phases_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second in the queue, one of prefill; then chunks of two and three tokens. A chunk may have several."""
    clock = ManualClock()
    monkeypatch.setattr("distkv.gateway.metrics.request_metrics.time.perf_counter", clock.now)
    metrics = Metrics(MODEL)
    with metrics.request(10, 100, Fate()) as record:
        for pause_s, count, more in ((1.5, 2, {"queue_s": 0.5}), (0.2, 2, {}), (0.6, 3, {"finish_reason": "stop"})):
            clock.advance(pause_s)
            record.chunk(Chunk("r", token_ids=[1] * count, **more))
    with metrics.request(10, 100, Fate()) as record:
        clock.advance(3.0)
        record.chunk(Chunk("r", token_ids=[1], finish_reason="stop"))
    found = {
        sample.name.removeprefix("distkv:"): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name.endswith(("_sum", "_count"))
    }
    for name, count, total in (
        ("inter_token_latency_seconds", 2, 0.8),
        ("time_per_output_token_seconds", 5, 0.8),
        ("request_time_per_output_token_seconds", 1, 0.8 / 5),
        ("request_queue_time_seconds", 1, 0.5),
        ("request_prefill_time_seconds", 2, 1.0 + 3.0),
        ("request_decode_time_seconds", 2, 0.8),
        ("request_inference_time_seconds", 2, 1.8 + 3.0),
        ("request_params_max_tokens", 2, 200),
    ):
        assert (found[f"{name}_count"], found[f"{name}_sum"]) == (count, pytest.approx(total)), name


async def test_failures_are_told_apart(start: Start) -> None:
    gateway = await start(ends("refused", "no"))
    await gateway.complete()
    _, found = await scrape(gateway)
    assert found["distkv:request_success_total", "finished_reason=error"] == 1
    assert found["distkv:prompt_tokens_total", ""] == 0


async def test_instances_are_asked(start: Start) -> None:
    gateway = await start(silence, silence)
    _, found = await scrape(gateway)
    for name in ("i0", "i1"):
        only = f"instance_id={name}"
        assert found["distkv:num_requests_running", only] == 1
        assert found["distkv:kv_cache_usage_perc", only] == 1 - 61 / 64
        assert found["distkv:borrowed_blocks", only] == 5
        assert found["distkv:remote_share", only] == 0 and found["distkv:serve_fraction", only] == 0
        assert found["distkv:debt_blocks", "creditor=i1,debtor=i0"] == 5
        assert (found["distkv:debts", ""], found["distkv:lent_blocks", ""]) == (1, 5)
        assert found["distkv:plans_total", ""] == 7
        assert found["distkv:plan_gain_tokens_per_second", "gain=predicted"] == 12.5
        assert found["distkv:plan_gain_tokens_per_second", "gain=achieved"] == -1.5
        assert found["distkv:num_preemptions_total", only] == 9
        assert found["distkv:attend_queries_total", only] == 7
        assert found["distkv:up", only] == 1
        assert found["distkv:blocks", f"{only},state=lent"] == 1
        assert found["distkv:instance_state", f"{only},state=ready"] == 1
        assert found["distkv:instance_state", f"{only},state=dead"] == 0


async def test_paths_that_users_invent_make_no_series(start: Start) -> None:
    gateway = await start()
    for path in ("/a", "/b/c", "/v1/models/x", "/v1/models/y/z", "/explain/x/y"):
        await gateway.http.get(path)
    await gateway.http.request("PROPFIND", "/a")
    _, found = await scrape(gateway)
    paths = {labels for name, labels in found if name == "distkv:http_requests_total"}
    assert "method=GET,path=unknown,status=404" in paths and "method=GET,path=/v1/models/{model_id},status=404" in paths
    assert "method=GET,path=/explain/{request_id},status=404" in paths
    assert not any("/a" in labels or "PROPFIND" in labels for labels in paths)


def test_every_counter_of_an_instance_is_a_metric() -> None:
    counters = Counters(**{name: index + 1 for index, name in enumerate(Counters.__struct_fields__)})
    instance = InstanceStatus.of(Member(instance_id="i0", incarnation=1, address=""), state="ready", counters=counters)
    blocks = SlotCounts(total=4, free=1, local=3)
    silent = InstanceStatus.of(Member(instance_id="i1", incarnation=1, address=""), state="dead", blocks=blocks)
    statuses = (Status(instance=instance), Status(instance=silent))
    families = list(ClusterCollector("m", lambda: statuses).collect())
    told = [sample.value for family in families if family.type == "counter" for sample in family.samples]
    # An instance that does not answer has no counters: zeros would look like a restart.
    assert sorted(told) == list(range(1, len(Counters.__struct_fields__) + 1))
    gauges = {family.name: family.samples for family in families if family.type == "gauge"}
    assert [sample.value for sample in gauges["distkv:kv_cache_usage_perc"]] == [0.0, 0.75]
    assert [sample.value for sample in gauges["distkv:up"]] == [1, 0]


async def test_what_ends_with_a_choice_that_failed_is_no_abort(start: Start) -> None:
    """Its siblings counted as requests whose user had left."""
    failed = ends("failed", "broken")

    def first_only(instance: Any, route: bytes, submit: Any) -> list[Any]:
        return failed(instance, route, submit) if submit.params.seed == 5 else silence(instance, route, submit)

    gateway = await start(first_only)
    assert (await gateway.complete("x", n=3, seed=5)).status_code == 500
    _, found = await scrape(gateway)
    counted = "distkv:request_success_total"
    ended = {reason: found[counted, f"finished_reason={reason}"] for reason in ("abort", "error")}
    assert ended == {"abort": 0, "error": 3}
