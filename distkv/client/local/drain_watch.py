"""What a stop waits for: requests that still run, as the instances themselves say."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from typing import Self

from distkv.client.blocking import Client
from distkv.errors import ClusterUnreachable
from distkv.wire.messages.to_client import Status

PERIOD_S = 0.3

OnWaiting = Callable[[dict[str, int]], None]
"""Is given the number of requests by the instance that they still run or wait at; none of those that have none."""


class DrainWatch:
    """Within the block, calls `on_waiting` from a thread of its own whenever what is waited for has changed."""

    def __init__(self, address: str, on_waiting: OnWaiting) -> None:
        """address: of a gManager that outlives the block."""
        self._client = Client(address)
        self._on_waiting = on_waiting
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="drain watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._client.close()
        self._thread.join()

    def _run(self) -> None:
        said: dict[str, int] = {}
        while not self._ended.wait(PERIOD_S):
            try:
                waiting = requests_of(self._client.statuses())
            except (ClusterUnreachable, RuntimeError, CancelledError):  # the last two once the client is closed
                continue
            if waiting != said and not self._ended.is_set():
                self._on_waiting(waiting)
            said = waiting


def requests_of(statuses: Iterable[Status]) -> dict[str, int]:
    """Requests by instance, of those that answer and have any."""
    instances = [status.instance for status in statuses if status.instance.answers]
    return {one.instance_id: one.running + one.waiting for one in instances if one.running + one.waiting}
