"""Who goes first where cores are busy: the event loops of the daemons, then what computes for requests, then what reads
for them.

A loop that waits for a core holds up everybody's stream, and every sign of life; it needs little time. Priorities are
relative to what a daemon was started with. To go before others takes rights (root, `CAP_SYS_NICE`, `Nice=` of a
service); without them the loops stay where they are, and the others go behind them all the same.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from pathlib import Path

STEP = 5
"""Of niceness, from one of the three to the next: where both want a core, the one has three times the other's share."""
_AUTOGROUP = Path("/proc/self/autogroup")
"""Where the kernel shares cores out by session first, niceness means little between sessions, but for this one's."""


def begin_loop(*, computes: bool) -> None:
    """To be called first in a daemon. computes: whether processes of its session compute for it."""
    with contextlib.suppress(PermissionError):
        os.nice(-STEP)
        if not computes:
            _be_nice_as_session(-STEP)


def begin_worker() -> None:
    """To be called first in a process that computes for a daemon."""
    os.nice(STEP)


def begin_helper() -> None:
    """To be called first in a process that a daemon starts to do for it what takes long, and that ends with its input.
    Whoever interrupts the daemon leaves this process to it; when memory is short, this process goes first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    with contextlib.suppress(PermissionError):  # it leads one already
        os.setsid()
    _be_nice_as_session(STEP)
    os.nice(2 * STEP)
    threading.Thread(target=_end_with, args=(os.pidfd_open(os.getppid()),), daemon=True).start()


def _end_with(daemon: int) -> None:
    """End when this process does, whatever is being computed: a group that is killed does not have us any more."""
    select.select([daemon], [], [])
    os._exit(1)


def _be_nice_as_session(niceness: int) -> None:
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            _AUTOGROUP.write_text(str(niceness))
