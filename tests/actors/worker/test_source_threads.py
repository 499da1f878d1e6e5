"""SourceThreads: in order for one source, side by side for several."""

from __future__ import annotations

import queue
import threading

import pytest

from distkv.actors.worker import source_threads
from distkv.actors.worker.source_threads import SourceThreads

DEADLINE_S = 30.0


@pytest.fixture(autouse=True)
def short_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_threads, "IDLE_S", 0.01)


def test_a_silent_source_holds_nobody_elses_pulls() -> None:
    done: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
    released = threading.Event()

    def work(job: tuple[str, int]) -> None:
        if job[0] == "silent":
            assert released.wait(DEADLINE_S)
        done.put(job)

    threads = SourceThreads[tuple[str, int]](work)
    jobs = [(source, number) for number in range(3) for source in ("silent", "good")]
    for job in jobs:
        threads.put(job[0], job)
    assert [done.get(timeout=DEADLINE_S) for _ in range(3)] == [("good", number) for number in range(3)]
    released.set()
    assert [done.get(timeout=DEADLINE_S) for _ in range(3)] == [("silent", number) for number in range(3)]


def test_a_thread_without_jobs_ends_and_another_takes_its_place() -> None:
    done: queue.SimpleQueue[str] = queue.SimpleQueue()
    threads = SourceThreads[str](lambda job: done.put(threading.current_thread().name + job))
    for number in range(20):
        threads.put("a", f" {number}")
        assert done.get(timeout=DEADLINE_S) == f"pull from a {number}"
        for thread in threading.enumerate():
            if number % 2 and thread.name == "pull from a":
                thread.join(DEADLINE_S)
                assert threads.sources == []
