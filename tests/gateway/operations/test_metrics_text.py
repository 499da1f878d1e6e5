"""The text of the metrics is written outside the event loop, and not for every scraper."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from distkv.gateway.metrics import metrics_text
from distkv.gateway.metrics.metrics_text import MetricsText


class Counting(Collector):
    """Counts how often it is asked, and who asks."""

    def __init__(self) -> None:
        self.asked: list[threading.Thread] = []

    def collect(self) -> Iterator[Metric]:
        self.asked.append(threading.current_thread())
        yield GaugeMetricFamily("distkv:asked", "How often.", value=len(self.asked))

    def describe(self) -> list[Metric]:
        return []


@pytest.fixture
def collector() -> Counting:
    return Counting()


@pytest.fixture
def text(collector: Counting) -> MetricsText:
    registry = CollectorRegistry()
    registry.register(collector)
    return MetricsText(registry)


async def test_many_scrapers_get_what_was_written_once(
    text: MetricsText, collector: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_text, "IDLE_SHARE", 1e9)
    found = await asyncio.gather(*(text.latest(is_open=False) for _ in range(100)))
    assert len(set(found)) == 1 and b"distkv:asked 1.0" in found[0][0]
    assert len(collector.asked) == 1 and collector.asked[0] is not threading.current_thread()
    assert (await text.latest(is_open=True))[0].endswith(b"# EOF\n") and len(collector.asked) == 2


async def test_it_is_written_anew_after_a_while(
    text: MetricsText, collector: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_text, "IDLE_SHARE", 0)
    for count in range(1, 4):
        assert f"distkv:asked {count}.0".encode() in (await text.latest(is_open=False))[0]
