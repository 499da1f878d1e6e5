"""Threads that make masks, each of which may take a bounded time of a core.

What makes a mask cannot be stopped, and neither the items nor the fuel that its library bounds say how long it takes:
a grammar of 200 symbols that can be read in many ways takes seconds. Nobody waits for one that has used up its time:
its thread goes on with little priority, and another takes its place. Time is that of the thread, so that a busy
machine, or one that was paused, ends no request.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Sequence
from queue import Empty, SimpleQueue
from threading import Lock, Thread, get_ident, get_native_id
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from llguidance import LLMatcher

Row = np.ndarray[tuple[int], np.dtype[np.int32]]

SLOW_S = 0.02
"""A mask that has taken so long keeps its thread to itself: those that wait for one do not wait for it."""
ALL_SLOW_S = 0.4
"""What those of a Step that are slow may take together, though each may take `SLOW_S`."""
MOST_LOST = 32
"""Threads that go on with masks nobody waits for. They end: llguidance's own limits let a mask take some seconds."""
_MOST_THREADS = 4
_LOOK_S = 0.005
_IDLE_S = 0.1
_NICE = 10
"""Of least priority it would keep the interpreter's lock from others for long whenever it comes to its end."""


class Mask:
    """Of one matcher, for `row`, in at most `allowed_s` of a core. spent_s: what it took."""

    def __init__(self, matcher: LLMatcher, row: Row, allowed_s: float) -> None:
        self.matcher, self.row, self.allowed_s = matcher, row, allowed_s
        self.spent_s = 0.0


class Job:
    """Masks of one grammar, whose matchers share a lock. done: where the job goes when they are made.

    error: what making one raised. is_given_up: one took longer, or there was no thread; matchers and rows are in use
    until it `is_over`, and no other matcher of the grammar may be used. began: whether there was a thread. finished_s:
    when it was made or given up, on the monotonic clock.
    """

    def __init__(self, masks: Sequence[Mask], done: SimpleQueue[Job]) -> None:
        self.error: BaseException | None = None
        self.is_given_up = self.began = False
        self.finished_s = 0.0
        self._masks, self._done = masks, done
        self._lock = Lock()
        self.is_over = self._is_slow = False
        self._thread = 0, 0
        self._now: tuple[Mask, float] | None = None

    def run(self) -> bool:
        """Make them, unless they were given up; whether that was slow."""
        with self._lock:
            if self.is_given_up:
                return False
            self._thread, self.began = (get_ident(), get_native_id()), True
        for mask in self._masks:
            with self._lock:
                if self.is_given_up:
                    break
                self._now = mask, time.thread_time()
            try:
                mask.matcher.unsafe_compute_mask_ptr(mask.row.ctypes.data, mask.row.nbytes)
            except BaseException as error:
                self.error = error
            mask.spent_s = time.thread_time() - self._now[1]
        with self._lock:
            self.is_over = True
            if not self.is_given_up:
                self.finished_s = time.monotonic()
        self._done.put(self)
        return self._is_slow

    def look(self, most_s: float, *, is_served: bool) -> bool:
        """Whether it has become slow. Gives it up if a mask takes longer than it or any may, or if it has not begun and
        is not going to be served."""
        with self._lock:
            if self.is_over or self.is_given_up:
                return False
            if self._now is None:
                if not self.began and not is_served:
                    self._give_up()
                return False
            (ident, native_id), (mask, begun_s) = self._thread, self._now
            spent_s = time.clock_gettime(time.pthread_getcpuclockid(ident)) - begun_s
            if spent_s >= min(mask.allowed_s, most_s):
                self._give_up()
                with contextlib.suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, native_id, _NICE)
            was_slow, self._is_slow = self._is_slow, self._is_slow or self.is_given_up or spent_s >= SLOW_S
            return self._is_slow and not was_slow

    def _give_up(self) -> None:
        self.is_given_up, self.finished_s = True, time.monotonic()


class MaskThreads:
    """`put` and `wait` are for one thread. Threads are started when there are masks, and end when there are none for
    some time."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._lock = Lock()
        self._serving = self._lost = 0

    def put(self, jobs: Collection[Job]) -> None:
        """Begin to make these."""
        for job in jobs:
            self._jobs.put(job)
        self._serve(min(len(jobs), _MOST_THREADS))

    def wait(self, jobs: Collection[Job], done: SimpleQueue[Job]) -> None:
        """Until each of these, which `done` is for, is made or given up."""
        waiting, slow = set(jobs), 1
        while waiting:
            try:
                waiting.discard(done.get(timeout=_LOOK_S))
            except Empty:
                for job in waiting:
                    if job.look(max(SLOW_S, ALL_SLOW_S / slow), is_served=self._serving > 0):
                        self._replace_one()
                        slow += 1
                waiting = {job for job in waiting if not job.is_given_up}

    def _replace_one(self) -> None:
        """One of the threads takes no more jobs."""
        with self._lock:
            self._serving -= 1
            self._lost += 1
            wanted = self._serving + 1
        self._serve(wanted)

    def _serve(self, wanted: int) -> None:
        """Have so many threads that take jobs, if there may be."""
        for _ in range(wanted):
            if not self._is_one_more(wanted):
                break
            try:
                Thread(target=self._run, name="masks", daemon=True).start()
            except RuntimeError:  # the system gives no more of them
                with self._lock:
                    self._serving -= 1
                break
        if self._serving == 0 and self._lost == 0:
            with contextlib.suppress(Empty):
                while True:
                    self._jobs.get_nowait().run()

    def _is_one_more(self, wanted: int) -> bool:
        """Count one more that takes jobs, if it is wanted and there may be one."""
        with self._lock:
            is_wanted = self._serving < wanted and self._lost < MOST_LOST
            self._serving += is_wanted
        return is_wanted

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_IDLE_S)
            except Empty:
                with self._lock:
                    if self._jobs.empty():
                        self._serving -= 1
                        return
            else:
                if job.run():
                    with self._lock:
                        self._lost -= 1
                    return
