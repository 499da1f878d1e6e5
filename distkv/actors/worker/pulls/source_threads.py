"""Pulls from one source wait for no other source: a thread for each peer that is being pulled from."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
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


@dataclass(slots=True, eq=False)
class _Source(Generic[Job]):
    """is_busy: it has jobs that are not done."""

    jobs: queue.SimpleQueue[Job] = field(default_factory=queue.SimpleQueue)
    is_busy: bool = True


class SourceThreads(Generic[Job]):
    """Hands each job to the thread of its source, in order. begin(): the work of a source whose thread starts.

    A silent source holds its own thread for as long as a read may take, and nobody else's.
    """

    def __init__(self, begin: Callable[[], Work[Job]]) -> None:
        self._begin = begin
        self._idle_s = IDLE_S
        self._lock = threading.Lock()
        self._sources: dict[str, _Source[Job]] = {}

    def put(self, source_id: str, job: Job) -> None:
        """Queue a job; from any thread. Raises RuntimeError when the system gives no thread for it."""
        with self._lock:
            source = self._sources.get(source_id)
            if source is None:
                source, name = _Source(), f"pull from {source_id}"
                threading.Thread(target=self._run, args=(source_id, source), name=name, daemon=True).start()
                self._sources[source_id] = source
            source.is_busy = True
            source.jobs.put(job)

    def is_busy(self, source_id: str) -> bool:
        """Whether its thread has jobs that are not done; only `put` begins more."""
        with self._lock:
            source = self._sources.get(source_id)
            return source is not None and source.is_busy

    @property
    def sources(self) -> list[str]:
        """Those that have a thread."""
        with self._lock:
            return sorted(self._sources)

    def _run(self, source_id: str, source: _Source[Job]) -> None:
        work, jobs = self._begin(), source.jobs
        while True:
            try:
                work.put(jobs.get(timeout=self._idle_s))
            except queue.Empty:
                with self._lock:
                    if jobs.empty():
                        del self._sources[source_id]
                        return
                continue
            is_left = True
            while is_left:
                while not jobs.empty():
                    work.put(jobs.get())
                is_left = work.step()
            with self._lock:
                source.is_busy = not jobs.empty()
