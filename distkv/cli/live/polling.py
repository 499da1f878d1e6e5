"""Watching a cluster on a terminal: asked again and again, drawn anew, ended by a key."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator

from rich.console import Console, Group

from distkv.cli.live.dashboard import View, picture
from distkv.cli.live.samples import Sample
from distkv.client.blocking import Client
from distkv.errors import ClusterUnreachable

PERIOD_S = 0.5
WINDOW_S = 5.0


class Watch:
    """Asks a cluster how it is. Throughput is over the last WINDOW_S."""

    def __init__(self, client: Client, title: str) -> None:
        self._client = client
        self._title = title
        self._samples: deque[Sample] = deque()

    def look(self) -> View:
        """How the cluster is now, within about a second. One that was never heard is a note in the view."""
        notes: tuple[str, ...] = ()
        try:
            statuses = self._client.statuses()
        except ClusterUnreachable as error:
            statuses, notes = (), (str(error),)
        else:
            if not self._client.address_answers:
                notes = (f"{self._client.address} does not answer; this is what the instances say",)
        now = Sample(time.monotonic(), statuses)
        self._samples.append(now)
        while now.taken_s - self._samples[0].taken_s > WINDOW_S and len(self._samples) > 2:
            self._samples.popleft()
        before = self._samples[0] if len(self._samples) > 1 else None
        return View(self._title, now, before, notes)


def fitted(view: View, console: Console) -> Group:
    """The picture as large as a console."""
    width, height = console.size
    return picture(view, width=width, height=height, ascii_only=console.options.ascii_only)


def is_live(console: Console) -> bool:
    """Whether a console is a terminal on which pictures can be drawn over each other."""
    return sys.stdout.isatty() and console.is_interactive


@contextlib.contextmanager
def keys() -> Iterator[Callable[[float], str]]:
    """Within, keys come unseen and without Enter: a call waits some seconds and returns those pressed, if any.

    Ctrl-C stays a signal. Where standard input is no terminal no key ever comes.
    """
    if not sys.stdin.isatty():
        yield _wait
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)

    def pressed(timeout_s: float) -> str:
        ready, _, _ = select.select([terminal], [], [], timeout_s)
        return os.read(terminal, 1024).decode(errors="replace") if ready else ""

    try:
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _wait(timeout_s: float) -> str:
    time.sleep(timeout_s)
    return ""
