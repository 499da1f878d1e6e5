"""Signals as KeyboardInterrupt, for commands that have something to clean up."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def signals_interrupt(*, once: bool = False) -> Iterator[None]:
    """Within, SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt in the main thread, SIGINT also where it was ignored
    before; an ignored SIGHUP stays ignored.

    once: only the first does, and later ones do nothing, so that cleaning up completes; it must be bounded in time.
    """
    came = False

    def interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal came
        if not (once and came):
            came = True
            raise KeyboardInterrupt

    signums = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signums.append(signal.SIGHUP)
    before = {signum: signal.signal(signum, interrupt) for signum in signums}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
