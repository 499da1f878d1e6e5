"""Reads the status of a cluster again and again, in a thread beside the one that reads the answer."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from typing import Self

import msgspec

from distkv.client.blocking import Client
from distkv.demo.run.placement import Placement, find
from distkv.errors import ClusterUnreachable
from distkv.wire.messages.counters import Counters

PERIOD_S = 0.1


class Traffic(msgspec.Struct, frozen=True):
    """Bytes that moved between instances so far. kv: blocks. query: queries and partials."""

    kv_bytes: int = 0
    query_bytes: int = 0


class RequestMonitor:
    """`with RequestMonitor(client, request_id) as monitor`: `traffic` is the newest known, `placement` the fullest.

    placement: when most KV of the request was seen to lie somewhere; of equal ones the newest. It stays when the
    request has ended, and is None if nobody looked before that. The client stays the caller's.
    """

    def __init__(self, client: Client, request_id: str) -> None:
        self.placement: Placement | None = None
        self.traffic = Traffic()
        self._client = client
        self._request_id = request_id
        self._polling = threading.Lock()
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo monitor", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.set()
        self._thread.join()

    def poll(self) -> None:
        """Read the statuses now. Any thread may."""
        with self._polling:  # else what one thread read before another may be noted after it
            statuses = self._client.statuses()
            self.traffic = _traffic([one.instance.counters for one in statuses])
            found = find(statuses, self._request_id)
            if found is not None and (self.placement is None or found.num_tokens >= self.placement.num_tokens):
                self.placement = found

    def _run(self) -> None:
        while not self._leave.wait(PERIOD_S):
            try:
                self.poll()
            except (ClusterUnreachable, RuntimeError, CancelledError):
                return  # the cluster or its client is gone; whoever reads the answer says so


def _traffic(counters: list[Counters]) -> Traffic:
    return Traffic(sum(one.kv_bytes for one in counters), sum(one.query_bytes for one in counters))
