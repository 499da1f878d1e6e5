"""What the instances say about themselves, as metrics with vLLM's names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from distkv.client.views.cluster_status import mean_gains, remote_share
from distkv.types import InstanceState
from distkv.wire.messages.counters import COUNTERS
from distkv.wire.messages.to_client import ClusterState, InstanceStatus, Status

STATES: tuple[InstanceState, ...] = get_args(InstanceState)
MAX_DEBTS = 64
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
    Gauge(
        "serve_fraction",
        "Share of the time of its own steps of late that serving peers took.",
        lambda one: one.serve_fraction,
    ),
    Gauge("up", "1 if the instance answers.", lambda one: one.answers),
)


class ClusterCollector(Collector):
    """Asked at every scrape. statuses: how every instance was a moment ago; state: what a gManager said then."""

    def __init__(
        self,
        model_name: str,
        statuses: Callable[[], Sequence[Status]],
        state: Callable[[], ClusterState | None] = lambda: None,
    ) -> None:
        self._model_name, self._statuses, self._state = model_name, statuses, state

    def collect(self) -> Iterator[Metric]:
        """All families; an instance that does not answer has only its last gauges, and no counters."""
        statuses = self._statuses()
        instances = [status.instance for status in statuses]
        for gauge in GAUGES:
            made = GaugeMetricFamily(f"distkv:{gauge.name}", gauge.text, labels=LABELS)
            for one in instances:
                made.add_metric(self._labels(one), float(gauge.value(one)))
            yield made
        answering = [one for one in instances if one.answers]
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
        remote = GaugeMetricFamily(
            "distkv:remote_share", "Share of the KV of an instance's requests that lies at creditors.", labels=LABELS
        )
        for status in statuses:
            remote.add_metric(self._labels(status.instance), remote_share(*status.requests))
        yield remote
        yield from self._graph(self._state())

    def _graph(self, state: ClusterState | None) -> Iterator[Metric]:
        """The debt graph: its largest edges, and how large it is."""
        if state is None:
            return
        debts = GaugeMetricFamily(
            "distkv:debt_blocks",
            f"rBlocks that a debtor has borrowed from a creditor; the {MAX_DEBTS} largest debts.",
            labels=["model_name", "debtor", "creditor"],
        )
        for debt in state.debts[:MAX_DEBTS]:
            debts.add_metric([self._model_name, debt.debtor_id, debt.creditor_id], debt.num_blocks)
        yield debts
        for name, text, value in (
            ("debts", "Pairs of a debtor and a creditor.", state.num_debts),
            ("lent_blocks", "rBlocks that are lent in the whole cluster.", state.lent_blocks),
        ):
            gauge = GaugeMetricFamily(f"distkv:{name}", text, labels=["model_name"])
            gauge.add_metric([self._model_name], value)
            yield gauge
        for name, text, count in (
            ("plans", "Moves that the gManager planned.", state.num_plans),
            ("dgfm_cycles", "Cycles of debts that the gManager had swapped.", state.num_runs),
        ):
            counted = CounterMetricFamily(f"distkv:{name}", text, labels=["model_name"])
            counted.add_metric([self._model_name], count)
            yield counted
        gains = GaugeMetricFamily(
            "distkv:plan_gain_tokens_per_second",
            "What the moves that were planned last, and are judged, were to bring and brought, on average.",
            labels=["model_name", "gain"],
        )
        for name, gain in () if (mean := mean_gains(state)) is None else mean._asdict().items():
            gains.add_metric([self._model_name, name], gain)
        yield gains

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry need not ask for names."""
        return []

    def _labels(self, one: InstanceStatus) -> list[str]:
        return [self._model_name, one.instance_id]


def _usage(one: InstanceStatus) -> float:
    return 1 - one.blocks.free / one.blocks.total if one.blocks.total else 0.0
