"""What other processes used."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_USER, _SYSTEM = 11, 12


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far, of all its threads. Raises OSError when there is none."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    return (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS_PER_S
