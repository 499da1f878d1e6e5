"""Pulls from one source wait for no other source: a thread for each peer that is being pulled from."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Job = TypeVar("Job")

IDLE_S = 10.0
"""How long a thread without a job stays."""


class SourceThreads(Generic[Job]):
    """Hands each job to the thread of its source, in order. work(job) does it, and does not raise.

    A silent source holds its own thread for as long as a read may take, and nobody else's.
    """

    def __init__(self, work: Callable[[Job], None]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._queues: dict[str, queue.SimpleQueue[Job]] = {}

    def put(self, source_id: str, job: Job) -> None:
        """Queue a job; from any thread."""
        with self._lock:
            jobs = self._queues.get(source_id)
            is_new = jobs is None
            if jobs is None:
                jobs = self._queues[source_id] = queue.SimpleQueue()
            jobs.put(job)
        if is_new:
            name = f"pull from {source_id}"
            threading.Thread(target=self._run, args=(source_id, jobs), name=name, daemon=True).start()

    @property
    def sources(self) -> list[str]:
        """Those that have a thread."""
        with self._lock:
            return sorted(self._queues)

    def _run(self, source_id: str, jobs: queue.SimpleQueue[Job]) -> None:
        while True:
            try:
                job = jobs.get(timeout=IDLE_S)
            except queue.Empty:
                with self._lock:
                    if jobs.empty():
                        del self._queues[source_id]
                        return
            else:
                self._work(job)
