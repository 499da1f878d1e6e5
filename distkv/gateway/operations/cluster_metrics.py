"""What the instances say about themselves, as metrics with vLLM's names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from distkv.types import InstanceState
from distkv.wire.messages.to_client import InstanceStatus, Status

STATES: tuple[InstanceState, ...] = ("starting", "ready", "draining", "unreachable", "dead")
LABELS = ("model_name", "instance_id")


class Measure(NamedTuple):
    """One number of an instance."""

    name: str
    text: str
    value: Callable[[InstanceStatus], float]


GAUGES = (
    Measure("num_requests_running", "Requests being computed.", lambda one: one.running),
    Measure("num_requests_waiting", "Requests that wait for memory or their turn.", lambda one: one.waiting),
    Measure("kv_cache_usage_perc", "Share of the KV pool in use; 1 is all of it.", lambda one: _usage(one)),
    Measure("borrowed_blocks", "rBlocks that this instance's requests have at peers.", lambda one: one.borrowed_blocks),
    Measure("block_tokens", "Tokens of one rBlock.", lambda one: one.block_tokens),
    Measure("up", "1 if the instance answers.", lambda one: one.state not in ("unreachable", "dead")),
)
COUNTERS = (
    Measure(
        "num_preemptions", "Requests that lost their memory and started over.", lambda one: one.counters.preemptions
    ),
    Measure("moved_blocks", "rBlocks moved to another instance.", lambda one: one.counters.moved_blocks),
    Measure("refusals", "Borrowings that this instance refused.", lambda one: one.counters.refusals),
    Measure("lease_expiries", "Leases that ended without renewal.", lambda one: one.counters.lease_expiries),
    Measure("checksum_refusals", "rBlocks refused for a wrong checksum.", lambda one: one.counters.checksum_refusals),
    Measure("recomputed_tokens", "Tokens whose KV was computed again.", lambda one: one.counters.recomputed_tokens),
    Measure("attend_queries", "Queries (token x layer) attended for peers.", lambda one: one.counters.attend_queries),
    Measure("query_bytes", "Queries sent to creditors and partials received.", lambda one: one.counters.query_bytes),
    Measure("kv_bytes", "KV bytes pulled into the pool.", lambda one: one.counters.kv_bytes),
    Measure(
        "attend_wait_seconds",
        "Time that steps stood still for creditors' partials.",
        lambda one: one.counters.attend_wait_s,
    ),
    Measure("plan_seconds", "Time the rManager took to decide.", lambda one: one.counters.plan_s),
    Measure("steps", "Steps that the worker ran.", lambda one: one.counters.steps),
    Measure("model_seconds", "Time that steps spent in the model.", lambda one: one.counters.model_s),
    Measure("malformed_messages", "Messages that broke the protocol.", lambda one: one.counters.malformed_messages),
    Measure("instance_prompt_tokens", "Prompt tokens that came in.", lambda one: one.counters.prompt_tokens),
    Measure("instance_generation_tokens", "Tokens generated.", lambda one: one.counters.generation_tokens),
)


class ClusterCollector(Collector):
    """Asked at every scrape. statuses: how every instance was a moment ago."""

    def __init__(self, model_name: str, statuses: Callable[[], Sequence[Status]]) -> None:
        self._model_name, self._statuses = model_name, statuses

    def collect(self) -> Iterator[Metric]:
        """All families; an instance that does not answer has only its last gauges, and no counters."""
        instances = [status.instance for status in self._statuses()]
        for gauge in GAUGES:
            yield self._fill(GaugeMetricFamily, gauge, instances)
        answering = [one for one in instances if one.state not in ("unreachable", "dead")]
        for counter in COUNTERS:
            yield self._fill(CounterMetricFamily, counter, answering)
        blocks = GaugeMetricFamily("distkv:blocks", "rBlocks of the pool by state.", labels=[*LABELS, "state"])
        states = GaugeMetricFamily("distkv:instance_state", "1 for the state it is in.", labels=[*LABELS, "state"])
        for one in instances:
            labels = [self._model_name, one.instance_id]
            for state in ("free", "local", "lent", "reserved"):
                blocks.add_metric([*labels, state], getattr(one.blocks, state))
            for known in STATES:
                states.add_metric([*labels, known], one.state == known)
        yield blocks
        yield states

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry need not ask for names."""
        return []

    def _fill(
        self,
        family: type[GaugeMetricFamily] | type[CounterMetricFamily],
        measure: Measure,
        instances: Sequence[InstanceStatus],
    ) -> Metric:
        made = family(f"distkv:{measure.name}", measure.text, labels=LABELS)
        for one in instances:
            made.add_metric([self._model_name, one.instance_id], float(measure.value(one)))
        return made


def _usage(one: InstanceStatus) -> float:
    return 1 - one.blocks.free / one.blocks.total if one.blocks.total else 0.0
