"""Lines to a log that may be read slowly, or not at all."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

MOST_WAITING_CHARACTERS = 2**20
"""Of lines that are not taken; further ones are left out."""
AT_ONCE_BYTES = select.PIPE_BUF
"""A line of at most so many bytes is taken whole by whoever takes anything."""


class LineWriter:
    """Writes whole lines from any thread. A log that cannot be written must not end the process, and one that nobody
    reads, as a paused terminal or the pipe of a collector that stands still, must not hold it: then lines wait, and a
    thread writes them in their order when they are taken.

    left_out: called in that thread, with how many did not find room, once those that did are written.
    """

    def __init__(self, out: TextIO, left_out: Callable[[int], None]) -> None:
        self._out = out
        self._left_out = left_out
        self._poll = _poll_of(out)
        self._lock = threading.Lock()
        self._waiting: deque[str] = deque()
        self._waiting_characters = self._num_left_out = 0
        self._thread: threading.Thread | None = None

    def write(self, line: str) -> None:
        """Returns at once, whoever reads."""
        with self._lock:
            if self._thread is None and not self._waiting and self._takes(line):
                self._write(line)
            elif self._waiting_characters + len(line) > MOST_WAITING_CHARACTERS:
                self._num_left_out += 1
            else:
                self._waiting.append(line)
                self._waiting_characters += len(line)
                if self._thread is None:
                    thread = threading.Thread(target=self._write_waiting, name="log", daemon=True)
                    # Where the system gives no more of them, the next line tries again.
                    with contextlib.suppress(RuntimeError):
                        thread.start()
                        self._thread = thread

    def flush(self, seconds: float) -> None:
        """Give waiting lines so long to be taken."""
        until_s = time.monotonic() + seconds
        while (thread := self._thread) is not None and (left_s := until_s - time.monotonic()) > 0:
            thread.join(left_s)
        with self._lock:
            while self._thread is None and self._waiting and self._write_until(self._waiting[0], until_s):
                self._waiting.popleft()

    def _write_until(self, line: str, until_s: float) -> bool:
        """Whether all of it was taken by then, where no thread could be started to wait for that."""
        text = line + "\n"
        for start in range(0, len(text), AT_ONCE_BYTES // 4):
            if self._poll is not None and not self._poll.poll(max(0.0, until_s - time.monotonic()) * 1000):
                return False
            with contextlib.suppress(OSError, ValueError):
                self._out.write(text[start : start + AT_ONCE_BYTES // 4])
                self._out.flush()
        return True

    def _takes(self, line: str) -> bool:
        if self._poll is None:
            return True
        most_bytes = len(line) if line.isascii() else 4 * len(line)
        return most_bytes < AT_ONCE_BYTES and bool(self._poll.poll(0))

    def _write(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._out.write(line + "\n")
            self._out.flush()

    def _write_waiting(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread, num_left_out = None, self._num_left_out
                    self._num_left_out = 0
                    break
                line = self._waiting.popleft()
                self._waiting_characters -= len(line)
            self._write(line)
        if num_left_out:
            self._left_out(num_left_out)


def _poll_of(out: TextIO) -> select.poll | None:
    """Says whether who reads takes more; None of what is always taken: files, and what is no file of the system."""
    try:
        descriptor = out.fileno()
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
    except (OSError, ValueError):
        return None
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return poll
