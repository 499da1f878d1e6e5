"""Notices the ends of links that nobody reads from, and calls what is due later: one thread for all."""

from __future__ import annotations

import heapq
import itertools
import os
import select
import threading
import time
from collections.abc import Callable

import structlog

from distkv.engine.attention.creditor_link import FrameStream


class LinkWatch:
    """Any thread may call. Its thread sleeps until a link ends or something is due; there is none before the first
    call. What a call raises is logged, and the others are called all the same. Closed by who made it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[int, tuple[FrameStream, Callable[[], None]]] = {}
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._thread: threading.Thread | None = None
        self._closed = False

    def on_end(self, stream: FrameStream, call: Callable[[], None]) -> None:
        """Call it, once, when either side ends the link of this socket; never after `close`. Raises LinkClosed if that
        has happened."""
        stream.enter()
        with self._lock:
            if self._closed:
                stream.leave()
                return
            fd = stream.fileno()
            self._watched[fd] = stream, call
            self._poll.register(fd, select.POLLRDHUP)
        self._start()

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call it then."""
        with self._lock:
            heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), call))
        self._start()

    def close(self) -> None:
        """Watch nothing any more; more than once is fine."""
        with self._lock:
            thread, self._thread, is_first = self._thread, None, not self._closed
            self._closed = True
        if thread is not None:
            os.eventfd_write(self._wake, 1)
            thread.join()
        if is_first:
            for stream, _call in self._watched.values():
                stream.leave()
            os.close(self._wake)

    def _start(self) -> None:
        with self._lock:
            if self._closed:
                return
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="link watch", daemon=True)
                thread.start()
                self._thread = thread
            os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        while self._wait():
            pass

    def _wait(self) -> bool:
        """Sleep until something has happened, and call what it calls for; whether to go on."""
        with self._lock:
            if self._closed:
                return False
            wait_ms = None if not self._due else max(0.0, (self._due[0][0] - time.monotonic()) * 1000)
        ended = [fd for fd, _events in self._poll.poll(wait_ms)]
        for call in self._take(ended):
            try:
                call()
            except Exception as error:
                structlog.get_logger().error("the end of a link was not followed", problem=str(error), exc_info=True)
        return True

    def _take(self, ended: list[int]) -> list[Callable[[], None]]:
        """What the ends of these links call for, and what is due."""
        calls: list[Callable[[], None]] = []
        with self._lock:
            for fd in ended:
                if fd == self._wake:
                    os.eventfd_read(self._wake)
                    continue
                # The number stays the link's own until it leaves.
                self._poll.unregister(fd)
                stream, call = self._watched.pop(fd)
                stream.leave()
                calls.append(call)
            while self._due and self._due[0][0] <= time.monotonic():
                calls.append(heapq.heappop(self._due)[2])
        return calls
