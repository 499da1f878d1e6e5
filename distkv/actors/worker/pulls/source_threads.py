"""Pulls from one source wait for no other source: a thread for each peer that is being pulled from."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

Job = TypeVar("Job", contravariant=True)

IDLE_S = 10.0
"""How long a thread without a job stays."""


class Work(Protocol[Job]):
    """What the thread of one source does with its jobs."""

    def put(self, job: Job) -> None:
        """One more; called between two steps."""

    def step(self) -> bool:
        """Go on with what there is; whether anything is left to do. Does not raise."""


class SourceThreads(Generic[Job]):
    """Hands each job to the thread of its source, in order. begin(): the work of a source whose thread starts.

    A silent source holds its own thread for as long as a read may take, and nobody else's.
    """

    def __init__(self, begin: Callable[[], Work[Job]]) -> None:
        self._begin = begin
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
        work = self._begin()
        while True:
            try:
                work.put(jobs.get(timeout=IDLE_S))
            except queue.Empty:
                with self._lock:
                    if jobs.empty():
                        del self._queues[source_id]
                        return
                continue
            is_left = True
            while is_left:
                while not jobs.empty():
                    work.put(jobs.get())
                is_left = work.step()
