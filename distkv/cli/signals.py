"""Signals: which of them count, and as KeyboardInterrupt for commands that have something to clean up."""

from __future__ import annotations

import contextlib
import math
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

BURST_S = 1.0
AGAIN_S = 0.05
"""So long after a KeyboardInterrupt that Python dropped it is raised again."""


class Bursts:
    """Signals that belong together: `timeout` signals a process and then its group, a service manager each process of a
    service, and a person means one thing by all of that."""

    def __init__(self) -> None:
        self._began_s = -math.inf

    def begins(self, now_s: float) -> bool:
        """Whether what comes now begins a burst; else it belongs to the one that began less than BURST_S ago."""
        if now_s - self._began_s < BURST_S:
            return False
        self._began_s = now_s
        return True


@contextlib.contextmanager
def signals_interrupt(*, once: bool = False) -> Iterator[None]:
    """Within, SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt in the main thread, once in each burst, SIGINT also
    where it was ignored before; an ignored SIGHUP stays ignored.

    once: only the first does, and later ones do nothing, so that cleaning up completes; it must be bounded in time.

    One that comes while a finalizer or a callback of a weak reference runs, from which nothing can be raised, comes
    again a moment later.
    """
    came, bursts = False, Bursts()
    again: threading.Timer | None = None

    def interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal came
        if bursts.begins(time.monotonic()) and not (once and came):
            came = True
            raise KeyboardInterrupt

    def dropped(unraisable: sys.UnraisableHookArgs) -> None:
        nonlocal came, bursts, again
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            hook(unraisable)
            return
        came, bursts = False, Bursts()
        again = threading.Timer(AGAIN_S, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        again.start()

    signums = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signums.append(signal.SIGHUP)
    hook = sys.unraisablehook
    before = {signum: signal.signal(signum, interrupt) for signum in signums}
    sys.unraisablehook = dropped
    try:
        yield
    finally:
        sys.unraisablehook = hook
        if again is not None:
            again.cancel()
        for signum, handler in before.items():
            signal.signal(signum, handler)
