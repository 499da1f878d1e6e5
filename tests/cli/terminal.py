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
        self._written = b""
        self._taken = 0

    def wait_for(self, words: str, timeout_s: float = 30.0) -> str:
        """What came up to and with these words, since those of the last call; colours, cursor movements and the width
        of columns do not matter."""
        deadline_s = time.monotonic() + timeout_s
        while (at := self._plain().find(words, self._taken)) < 0:
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, f"no {words!r} in {self._plain()[self._taken :][-4000:]!r}"
            if select.select([self._fd], [], [], left_s)[0]:
                self._written += os.read(self._fd, 65536)
        before, self._taken = self._taken, at + len(words)
        return self._plain()[before : self._taken]

    @property
    def written(self) -> str:
        """All that came so far, as the program wrote it."""
        return self._written.decode(errors="replace")

    def _plain(self) -> str:
        return plain(self.written)

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
