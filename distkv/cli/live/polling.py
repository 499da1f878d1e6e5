"""Polling a cluster for a live view."""

from __future__ import annotations

import time
from collections import deque

from distkv.cli.live.dashboard import View
from distkv.cli.live.samples import Sample
from distkv.client.blocking import Client
from distkv.errors import ClusterUnreachable
from distkv.wire.messages.to_client import ClusterState

PERIOD_S = 0.5
WINDOW_S = 5.0


class Poller:
    """Polls the statuses of a cluster. Throughput is over the last WINDOW_S."""

    def __init__(self, client: Client, title: str) -> None:
        self._client = client
        self._title = title
        self._samples: deque[Sample] = deque()

    def poll(self) -> View:
        """The cluster now, within about a second. That it never answered is a note in the view."""
        notes: tuple[str, ...] = ()
        cluster: ClusterState | None = None
        try:
            statuses = self._client.statuses()
            cluster = self._client.cluster()
        except ClusterUnreachable as error:
            statuses, notes = (), (str(error),)
        else:
            if not self._client.address_answers:
                notes = (f"{self._client.address} does not answer; this is what the instances say",)
        now = Sample(time.monotonic(), statuses)
        self._samples.append(now)
        while now.taken_s - self._samples[0].taken_s > WINDOW_S and len(self._samples) > 2:
            self._samples.popleft()
        before = self._samples[0] if len(self._samples) > 1 else None
        return View(self._title, now, before, notes, cluster)
