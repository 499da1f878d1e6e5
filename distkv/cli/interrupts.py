"""One interrupt, then quiet: for commands that clean up a lot and always within a bound."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def first_signal_interrupts() -> Iterator[None]:
    """Within, the first SIGINT, SIGTERM or SIGHUP raises KeyboardInterrupt in the main thread, and later ones do
    nothing, so that cleaning up completes; it must be bounded in time. An ignored SIGHUP stays ignored."""
    came = False

    def interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal came
        if not came:
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
