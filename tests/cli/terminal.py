"""Programs on a terminal of their own: what they write there, and what keys do."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SPACES = re.compile(r" +")


def plain(shown: str) -> str:
    """The words on a terminal, with one space between them."""
    return SPACES.sub(" ", ESCAPE.sub("", shown))


class Terminal:
    """A program and the other end of its terminal."""

    def __init__(self, process: subprocess.Popen[bytes], fd: int) -> None:
        self.process = process
        self._fd = fd
        self._unread = ""

    def wait_for(self, words: str, timeout_s: float = 30.0) -> str:
        """What came up to and with these words, since the last call; colours, cursor movements and the width of
        columns do not matter."""
        deadline_s = time.monotonic() + timeout_s
        while words not in plain(self._unread):
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, f"no {words!r} in {plain(self._unread)[-4000:]!r}"
            if select.select([self._fd], [], [], left_s)[0]:
                self._unread += os.read(self._fd, 65536).decode(errors="replace")
        taken, self._unread = self._unread, ""
        return taken

    def press(self, keys: str) -> None:
        os.write(self._fd, keys.encode())


@contextmanager
def on_terminal(command: Sequence[str], *, rows: int = 24, columns: int = 80) -> Iterator[Terminal]:
    """Runs a command on a terminal of this size; it is killed in the end if it still runs."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    env = os.environ | {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True)
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
