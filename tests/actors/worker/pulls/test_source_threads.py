"""SourceThreads: in order for one source, side by side for several."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable

import pytest

from distkv.actors.worker.pulls import source_threads
from distkv.actors.worker.pulls.source_threads import SourceThreads
from tests.waiting import wait_until

DEADLINE_S = 30.0


@pytest.fixture(autouse=True)
def short_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_threads, "IDLE_S", 0.01)


class OneByOne:
    """Does a job a step."""

    def __init__(self, do: Callable[[str], None]) -> None:
        self._do, self.jobs = do, deque[str]()

    def put(self, job: str) -> None:
        self.jobs.append(job)

    def step(self) -> bool:
        self._do(self.jobs.popleft())
        return bool(self.jobs)


def test_a_silent_source_holds_nobody_elses_pulls() -> None:
    done: queue.SimpleQueue[str] = queue.SimpleQueue()
    released = threading.Event()

    def do(job: str) -> None:
        if job.startswith("silent"):
            assert released.wait(DEADLINE_S)
        done.put(job)

    threads = SourceThreads[str](lambda: OneByOne(do))
    for number in range(3):
        for source in ("silent", "good"):
            threads.put(source, f"{source} {number}")
    assert [done.get(timeout=DEADLINE_S) for _ in range(3)] == [f"good {number}" for number in range(3)]
    released.set()
    assert [done.get(timeout=DEADLINE_S) for _ in range(3)] == [f"silent {number}" for number in range(3)]


def test_what_comes_meanwhile_is_known_at_the_next_step() -> None:
    steps: queue.SimpleQueue[int] = queue.SimpleQueue()
    begun, released = threading.Event(), threading.Event()

    class Counts(OneByOne):
        def step(self) -> bool:
            begun.set()
            assert released.wait(DEADLINE_S)
            steps.put(len(self.jobs))
            return super().step()

    threads = SourceThreads[str](lambda: Counts(lambda job: None))
    threads.put("a", "first")
    assert begun.wait(DEADLINE_S)
    threads.put("a", "second")
    threads.put("a", "third")
    released.set()
    assert [steps.get(timeout=DEADLINE_S) for _ in range(3)] == [1, 2, 1]


def test_a_source_is_busy_from_the_first_job_to_the_end_of_the_last() -> None:
    begun, released = queue.SimpleQueue[str](), threading.Semaphore(0)

    def do(job: str) -> None:
        begun.put(job)
        assert released.acquire(timeout=DEADLINE_S)

    threads = SourceThreads[str](lambda: OneByOne(do))
    assert not threads.is_busy("a")
    for job in ("first", "second"):
        threads.put("a", job)
    assert threads.is_busy("a") and not threads.is_busy("b")
    for job in ("first", "second"):
        assert begun.get(timeout=DEADLINE_S) == job
        assert threads.is_busy("a")
        released.release()
    wait_until(lambda: not threads.is_busy("a"), DEADLINE_S)


def test_a_thread_without_jobs_ends_and_another_takes_its_place() -> None:
    done: queue.SimpleQueue[str] = queue.SimpleQueue()
    threads = SourceThreads[str](lambda: OneByOne(lambda job: done.put(threading.current_thread().name + job)))
    for number in range(20):
        threads.put("a", f" {number}")
        assert done.get(timeout=DEADLINE_S) == f"pull from a {number}"
        for thread in threading.enumerate():
            if number % 2 and thread.name == "pull from a":
                thread.join(DEADLINE_S)
                assert threads.sources == []
