"""Where both ends of a link run: a sleeping core takes tens of µs to wake, and two ends on one core take turns."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

ONE, TWO = "on one core", "on two cores"


def placements() -> tuple[str, ...]:
    """Those that this machine has; "" is where the system places them."""
    return ("", ONE, TWO) if len(os.sched_getaffinity(0)) > 1 else ("",)


@contextlib.contextmanager
def held(pid: int, where: str) -> Iterator[None]:
    """This thread and all threads of another process stay there meanwhile."""
    allowed = os.sched_getaffinity(0)
    if where:
        here, *others = sorted(allowed)
        _hold(0, {here})
        _hold_all(pid, {here if where == ONE else others[0]})
    try:
        yield
    finally:
        if where:
            _hold(0, allowed)
            _hold_all(pid, allowed)


def _hold_all(pid: int, cores: set[int]) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        _hold(int(thread.name), cores)


def _hold(thread: int, cores: set[int]) -> None:
    # A thread may have ended since it was listed.
    with contextlib.suppress(ProcessLookupError):
        os.sched_setaffinity(thread, cores)
