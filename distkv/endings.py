"""How processes ended, in words."""

from __future__ import annotations

import signal
from pathlib import Path

EVENTS = Path("/proc/vmstat")


def oom_kills(events: Path = EVENTS) -> int:
    """How many processes this machine has killed for want of memory since it began, in whatever control groups; 0 where
    it does not say."""
    try:
        facts = dict(line.split() for line in events.read_text().splitlines())
        return int(facts.get("oom_kill", 0))
    except (OSError, ValueError):
        return 0


def describe_exit(code: int | None, oom_kills_before: int | None = None) -> str:
    """An exit code in words. oom_kills_before: `oom_kills` while the process still ran, if it is one that may have been
    killed for want of memory."""
    if code is None or code >= 0:
        return f"it exited with code {code}"
    how = f"it was killed by {next((known.name for known in signal.Signals if known == -code), f'signal {-code}')}"
    if code == -signal.SIGKILL and oom_kills_before is not None and oom_kills() > oom_kills_before:
        how += ", and this machine has killed a process for want of memory meanwhile: it may need a smaller pool"
    return how
