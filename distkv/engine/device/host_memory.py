"""How much memory this process may have: the machine's, or what the control groups that it is in leave of it, as in a
container. A group ends who takes more, however much the machine has."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from distkv.control_groups import GROUPS, ROOT, levels

_V2_NAMES = ("memory.max", "memory.high", "memory.current", "")
_V1_NAMES = ("memory.limit_in_bytes", "", "memory.usage_in_bytes", "total_")
"""What the limit of a group, that beyond which it hardly goes on, and its use are called, and how names of its files
begin."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """all_bytes: if nobody else had any. free_bytes: not in use, and what keeps files for as long as nobody needs it.
    left_bytes: what groups leave, None where none has a limit; who takes more is killed."""

    all_bytes: int
    free_bytes: int
    left_bytes: int | None = None


def host_memory(groups: Path = GROUPS, root: Path = ROOT) -> HostMemory:
    """As of now. groups, root: see `levels`."""
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    machine_bytes = all_bytes = os.sysconf("SC_PHYS_PAGES") * page_bytes
    free_bytes, left_bytes = available_bytes() or os.sysconf("SC_AVPHYS_PAGES") * page_bytes, None
    for place, is_v2 in levels("memory", groups, root):
        limit, slow, used, kept = _V2_NAMES if is_v2 else _V1_NAMES
        for name in (limit, slow):
            try:
                limit_bytes, used_bytes = int((place / name).read_text()), int((place / used).read_text())
                left = max(0, limit_bytes - used_bytes + _kept_bytes(place / "memory.stat", kept))
            except (OSError, ValueError):  # none, or "max"
                continue
            all_bytes = min(all_bytes, limit_bytes)
            free_bytes = min(free_bytes, left)
            if name == limit and limit_bytes < machine_bytes:
                left_bytes = left if left_bytes is None else min(left_bytes, left)
    return HostMemory(all_bytes, free_bytes, left_bytes)


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """What the machine has for whoever needs memory now; 0 where that is not told."""
    try:
        facts = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return int(facts["MemAvailable"].removesuffix("kB")) * 1024
    except (OSError, ValueError, KeyError):
        return 0


def _kept_bytes(stat: Path, prefix: str) -> int:
    """Of files that were read or written, and what the system keeps of directories, where that is told: they give way
    to whoever needs memory."""
    facts = dict(line.split() for line in stat.read_text().splitlines())
    names = (f"{prefix}inactive_file", f"{prefix}active_file", "slab_reclaimable")
    return sum(int(facts.get(name, 0)) for name in names)
