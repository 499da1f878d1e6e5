"""What other processes used."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PARENT, _USER, _CHILDREN_SYSTEM = 1, 11, 14
_USER_OF_ALL, _NICE_OF_ALL, _SYSTEM_OF_ALL, _STEAL_OF_ALL = 0, 1, 2, 7


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far, of all its threads. Raises OSError when there is none."""
    fields = _fields(pid)
    return (int(fields[_USER]) + int(fields[_USER + 1])) / _TICKS_PER_S


def thread_seconds(pid: int) -> dict[int, float]:
    """Processor time of each thread of a process so far, by its number. Raises OSError when there is no process."""
    found = {}
    for task in (_PROC / f"{pid}/task").iterdir():
        with suppress(OSError):  # it has ended meanwhile
            found[int(task.name)] = int((task / "schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    return found


class OtherPrograms:
    """What is none of this process and of those it started, them and theirs; from when it is made."""

    def __init__(self) -> None:
        self._begun_s, self._before_s = time.monotonic(), self._used_s()

    def cores(self) -> float:
        """How many cores they kept busy since then, on average; other virtual machines included."""
        return max(0.0, self._used_s() - self._before_s) / (time.monotonic() - self._begun_s)

    @staticmethod
    def _used_s() -> float:
        return busy_seconds() - family_seconds([os.getpid()])


def busy_seconds() -> float:
    """Processor time of all programs so far, and what other virtual machines had of this one's processors."""
    of_all = (_PROC / "stat").read_text(encoding="ascii").split(maxsplit=11)[1:11]
    return sum(int(of_all[kind]) for kind in (_USER_OF_ALL, _NICE_OF_ALL, _SYSTEM_OF_ALL, _STEAL_OF_ALL)) / _TICKS_PER_S


def family_seconds(roots: Sequence[int]) -> float:
    """Processor time so far of these processes and all that descend from them, with those of theirs that have ended."""
    known: dict[int, list[str]] = {}
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            pid = int(entry.name)
            with suppress(OSError):  # it has ended meanwhile
                known[pid] = fields = _fields(pid)
                children.setdefault(int(fields[_PARENT]), []).append(pid)
    found = [pid for pid in roots if pid in known]
    for pid in found:
        found += (child for child in children.get(pid, ()) if child not in found)
    return sum(int(ticks) for pid in found for ticks in known[pid][_USER : _CHILDREN_SYSTEM + 1]) / _TICKS_PER_S


def _fields(pid: int) -> list[str]:
    """Of its `stat`, behind its name."""
    return (_PROC / f"{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
