"""Threads that make masks, with matchers that compute as long as a test wants."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from distkv.engine.sampling import mask_threads
from distkv.engine.sampling.mask_threads import Job, Mask, MaskThreads

ALLOWED_S = 0.03
_BYTES = bytes(1 << 18)


class Matcher:
    """Makes a mask of ones, when it has computed until `may_end` is set."""

    def __init__(self, row: np.ndarray[tuple[int], np.dtype[np.int32]], may_end: threading.Event | None) -> None:
        self._row, self._may_end = row, may_end
        self.ended = threading.Event()

    def unsafe_compute_mask_ptr(self, address: int, size: int) -> None:
        assert (address, size) == (self._row.ctypes.data, self._row.nbytes)
        while self._may_end is not None and not self._may_end.is_set():
            hashlib.sha256(_BYTES)  # which lets other threads run
        self._row[:] = 1
        self.ended.set()


class Masks:
    """Jobs of one Step: `slow` ones compute until the test lets them end."""

    def __init__(self, may_end: threading.Event, kinds: str) -> None:
        self.words = np.zeros((len(kinds), 3), np.int32)
        self.done: SimpleQueue[Job] = SimpleQueue()
        self.matchers = [
            Matcher(row, may_end if kind == "s" else None) for row, kind in zip(self.words, kinds, strict=True)
        ]
        self.jobs = [self._job(matcher, row) for matcher, row in zip(self.matchers, self.words, strict=True)]

    def _job(self, matcher: Any, row: np.ndarray[tuple[int], np.dtype[np.int32]]) -> Job:
        return Job([Mask(matcher, row, ALLOWED_S)], self.done)

    def make(self, threads: MaskThreads) -> str:
        """For each whether it was made or given up."""
        threads.put(self.jobs)
        threads.wait(self.jobs, self.done)
        return "".join("g" if job.is_given_up else "m" for job in self.jobs)


@pytest.fixture
def masks() -> Iterator[Callable[[str], Masks]]:
    may_end, every = threading.Event(), list[Masks]()

    def make(kinds: str) -> Masks:
        every.append(Masks(may_end, kinds))
        return every[-1]

    yield make
    may_end.set()
    for one in every:
        for matcher, job in zip(one.matchers, one.jobs, strict=False):
            assert not job.is_given_up or not job.began or matcher.ended.wait(30)


def test_masks_are_made_by_few_threads(masks: Callable[[str], Masks]) -> None:
    threads = MaskThreads()
    for kinds in ("f", "ffffffff", ""):
        one = masks(kinds)
        assert one.make(threads) == "m" * len(kinds)
        assert (one.words == 1).all() and not any(job.error for job in one.jobs)
    assert threads._serving <= mask_threads._MOST_THREADS and threads._lost == 0


def test_nobody_waits_for_one_that_takes_too_long(masks: Callable[[str], Masks]) -> None:
    """However many there are before the others."""
    threads = MaskThreads()
    one = masks("s" * 7 + "fff")
    assert one.make(threads) == "g" * 7 + "mmm"
    assert (one.words[7:] == 1).all()
    assert masks("ff").make(threads) == "mm"
    assert threads._serving <= mask_threads._MOST_THREADS and threads._lost == 7


def test_masks_of_one_grammar_are_made_one_after_another_each_in_its_time(masks: Callable[[str], Masks]) -> None:
    """Its matchers share a lock. One that takes too long ends those behind it."""
    threads = MaskThreads()
    one = masks("ffsf")
    made = [Mask(matcher, row, ALLOWED_S) for matcher, row in zip(one.matchers, one.words, strict=True)]  # type: ignore[arg-type]
    one.jobs = [Job(made, one.done)]
    assert one.make(threads) == "g"
    assert one.words.any(axis=1).tolist() == [True, True, False, False]
    many = masks("f" * 50)
    many.jobs = [Job([Mask(m, row, ALLOWED_S) for m, row in zip(many.matchers, many.words, strict=True)], many.done)]  # type: ignore[arg-type]
    assert many.make(threads) == "m" and (many.words == 1).all()


def test_as_many_as_there_may_be_leave_none_for_others(
    masks: Callable[[str], Masks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which are not waited for either, and are not made later."""
    monkeypatch.setattr(mask_threads, "MOST_LOST", 2)
    monkeypatch.setattr(mask_threads, "_MOST_THREADS", 1)
    threads = MaskThreads()
    one = masks("sssf")
    assert one.make(threads) == "gggg" and [job.began for job in one.jobs] == [True, True, False, False]
    other = masks("f")
    assert other.make(threads) == "g" and other.jobs[0].run() is False and not other.matchers[0].ended.is_set()


def test_what_waits_without_computing_is_not_given_up() -> None:
    """As where a machine is paused."""
    may_end, done = threading.Event(), SimpleQueue[Job]()

    class Paused:
        def unsafe_compute_mask_ptr(self, address: int, size: int) -> None:
            may_end.wait()

    matcher: Any = Paused()
    mask = Mask(matcher, np.zeros(3, np.int32), ALLOWED_S)
    job = Job([mask], done)
    threads = MaskThreads()
    threads.put([job])
    threading.Timer(5 * ALLOWED_S, may_end.set).start()
    threads.wait([job], done)
    assert not job.is_given_up and mask.spent_s < ALLOWED_S


def test_without_threads_masks_are_made_at_once(masks: Callable[[str], Masks], monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads = MaskThreads()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        assert masks("fff").make(threads) == "mmm" and threads._serving == 0
    assert masks("fff").make(threads) == "mmm"


def test_threads_that_have_nothing_to_do_end(masks: Callable[[str], Masks], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_threads, "_IDLE_S", 0.0)
    threads = MaskThreads()
    for _ in range(20):
        assert masks("fff").make(threads) == "mmm"
    for thread in threading.enumerate():
        if thread.name == "masks":
            thread.join(30)
    assert threads._serving == 0
