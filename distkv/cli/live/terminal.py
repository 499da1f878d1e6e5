"""The terminal of a live view: what fits on it, and the keys pressed."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator

from rich.console import Console, Group

from distkv.cli.live.dashboard import ANY_WIDTH, View, render

GONE = "q"
"""What a terminal that is gone presses: the key that ends what it shows."""


def render_to_fit(view: View, console: Console) -> Group:
    """The view, as large as a console."""
    width, height = console.size
    return render(view, width=width, height=height, ascii_only=console.options.ascii_only)


def output_console() -> Console:
    """Standard output, for tables. Where it is no terminal nothing on it is wrapped or cut."""
    return Console(width=None if sys.stdout.isatty() else ANY_WIDTH, markup=False, highlight=False)


def is_live(console: Console) -> bool:
    """Whether a console is a terminal on which a view can be drawn over the last one."""
    return sys.stdout.isatty() and console.is_interactive


@contextlib.contextmanager
def keys() -> Iterator[Callable[[float], str]]:
    """Within, keys come unseen and without Enter: a call waits some seconds and returns those pressed, if any.

    Ctrl-C stays a signal. Where standard input is no terminal no key ever comes; of one that is gone comes GONE.
    """
    if not sys.stdin.isatty():
        yield _wait
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)

    def pressed(timeout_s: float) -> str:
        if not select.select([terminal], [], [], timeout_s)[0]:
            return ""
        try:
            return os.read(terminal, 1024).decode(errors="replace") or GONE
        except OSError:
            return GONE

    try:
        yield pressed
    finally:
        with contextlib.suppress(termios.error):  # it is gone
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _wait(timeout_s: float) -> str:
    time.sleep(timeout_s)
    return ""
