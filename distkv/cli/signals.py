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
"""So long after a KeyboardInterrupt that would be, or was, dropped it is tried again."""


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

    One that comes where it would be dropped comes again a moment later: in finalizers, from which nothing is raised,
    and where a hash is asked for, as msgspec takes whatever goes wrong there for a type without one.
    """
    came, bursts = False, Bursts()
    again: list[threading.Timer] = []

    def later() -> None:
        again.append(threading.Timer(AGAIN_S, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)))
        again[-1].start()

    def interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal came
        if _computes_hash(frame):
            later()
        elif bursts.begins(time.monotonic()) and not (once and came):
            came = True
            raise KeyboardInterrupt

    def dropped(unraisable: sys.UnraisableHookArgs) -> None:
        nonlocal came, bursts
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            hook(unraisable)
            return
        came, bursts = False, Bursts()
        later()

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
        is_waiting = any(timer.is_alive() for timer in again)
        for timer in again:
            timer.cancel()
        for signum, handler in before.items():
            signal.signal(signum, handler)
    if is_waiting:
        raise KeyboardInterrupt


def _computes_hash(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name != "__hash__":
        frame = frame.f_back
    return frame is not None
