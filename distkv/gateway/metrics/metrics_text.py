"""All metrics as text: of many instances that takes long, so it is written in a thread, and not for every scraper."""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

IDLE_SHARE = 10
"""A text is given out for so many times as long as it took to write: whoever scrapes all the time costs a tenth."""


class _Text(NamedTuple):
    raw: bytes
    fresh_until_s: float


class MetricsText:
    """Writes one text at a time; who comes meanwhile waits."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._texts: dict[bool, _Text] = {}
        self._turn = asyncio.Lock()

    async def latest(self, *, is_open: bool) -> tuple[bytes, str]:
        """The text and its content type: OpenMetrics if `is_open`, else Prometheus."""
        async with self._turn:
            known = self._texts.get(is_open)
            if known is None or time.perf_counter() >= known.fresh_until_s:
                started_s = time.perf_counter()
                raw = await asyncio.to_thread(self._write, is_open)
                ended_s = time.perf_counter()
                known = self._texts[is_open] = _Text(raw, ended_s + IDLE_SHARE * (ended_s - started_s))
        return known.raw, openmetrics.CONTENT_TYPE_LATEST if is_open else CONTENT_TYPE_PLAIN_0_0_4

    def _write(self, is_open: bool) -> bytes:
        # The library's own choice may write the colons of our names as underscores.
        write: Any = openmetrics.generate_latest if is_open else generate_latest  # the former has no types
        raw: bytes = write(self._registry, escaping=openmetrics.ALLOWUTF8)
        return raw
