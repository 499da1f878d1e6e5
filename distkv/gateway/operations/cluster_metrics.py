"""What the instances say about themselves, as metrics with vLLM's names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from distkv.types import InstanceState
from distkv.wire.messages.counters import COUNTERS
from distkv.wire.messages.to_client import InstanceStatus, Status

STATES: tuple[InstanceState, ...] = get_args(InstanceState)
SILENT = ("unreachable", "dead", "left")
LABELS = ("model_name", "instance_id")


class Gauge(NamedTuple):
    """One number of an instance that goes up and down."""

    name: str
    text: str
    value: Callable[[InstanceStatus], float]


GAUGES = (
    Gauge("num_requests_running", "Requests being computed.", lambda one: one.running),
    Gauge("num_requests_waiting", "Requests that wait for memory or their turn.", lambda one: one.waiting),
    Gauge("kv_cache_usage_perc", "Share of the KV pool in use; 1 is all of it.", lambda one: _usage(one)),
    Gauge("borrowed_blocks", "rBlocks that this instance's requests have at peers.", lambda one: one.borrowed_blocks),
    Gauge("block_tokens", "Tokens of one rBlock.", lambda one: one.block_tokens),
    Gauge("up", "1 if the instance answers.", lambda one: one.state not in SILENT),
)


class ClusterCollector(Collector):
    """Asked at every scrape. statuses: how every instance was a moment ago."""

    def __init__(self, model_name: str, statuses: Callable[[], Sequence[Status]]) -> None:
        self._model_name, self._statuses = model_name, statuses

    def collect(self) -> Iterator[Metric]:
        """All families; an instance that does not answer has only its last gauges, and no counters."""
        instances = [status.instance for status in self._statuses()]
        for gauge in GAUGES:
            made = GaugeMetricFamily(f"distkv:{gauge.name}", gauge.text, labels=LABELS)
            for one in instances:
                made.add_metric(self._labels(one), float(gauge.value(one)))
            yield made
        answering = [one for one in instances if one.state not in SILENT]
        for counter in COUNTERS:
            counted = CounterMetricFamily(
                f"distkv:{counter.metric}", f"{counter.text[0].upper()}{counter.text[1:]}.", labels=LABELS
            )
            for one in answering:
                counted.add_metric(self._labels(one), float(getattr(one.counters, counter.name)))
            yield counted
        blocks = GaugeMetricFamily("distkv:blocks", "rBlocks of the pool by state.", labels=[*LABELS, "state"])
        states = GaugeMetricFamily("distkv:instance_state", "1 for the state it is in.", labels=[*LABELS, "state"])
        for one in instances:
            labels = self._labels(one)
            for state in ("free", "local", "lent", "reserved"):
                blocks.add_metric([*labels, state], getattr(one.blocks, state))
            for known in STATES:
                states.add_metric([*labels, known], one.state == known)
        yield blocks
        yield states

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry need not ask for names."""
        return []

    def _labels(self, one: InstanceStatus) -> list[str]:
        return [self._model_name, one.instance_id]


def _usage(one: InstanceStatus) -> float:
    return 1 - one.blocks.free / one.blocks.total if one.blocks.total else 0.0
