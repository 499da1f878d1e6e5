"""How much memory this process may have: the machine's, or what the control groups that it is in leave of it, as in a
container. A group ends who takes more, however much the machine has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

GROUPS = Path("/proc/self/cgroup")
ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class HostMemory:
    """all_bytes: if nobody else had any. free_bytes: not in use; of a group's, files that are kept do not count."""

    all_bytes: int
    free_bytes: int


def host_memory(groups: Path = GROUPS, root: Path = ROOT) -> HostMemory:
    """As of now. groups, root: where the system says in which control groups this process is, and what they have."""
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    memory = HostMemory(os.sysconf("SC_PHYS_PAGES") * page_bytes, os.sysconf("SC_AVPHYS_PAGES") * page_bytes)
    for place, limit, used, kept in _levels(groups, root):
        try:
            limit_bytes, used_bytes = int((place / limit).read_text()), int((place / used).read_text())
            free_bytes = max(0, limit_bytes - used_bytes + _kept_bytes(place / "memory.stat", kept))
        except (OSError, ValueError):  # none, or "max"
            continue
        memory = HostMemory(min(memory.all_bytes, limit_bytes), min(memory.free_bytes, free_bytes))
    return memory


def _levels(groups: Path, root: Path) -> Iterator[tuple[Path, str, str, str]]:
    """Each group and those around it, and what its limit, its use and its files are called there; within a container
    the outer ones are not seen, and the root is its own."""
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            names, start = ("memory.max", "memory.current", ""), root
        elif "memory" in controllers.split(","):
            names, start = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"), root / "memory"
        else:
            continue
        inner = PurePosixPath(path.lstrip("/"))
        for level in (inner, *inner.parents):
            yield start / level, *names


def _kept_bytes(stat: Path, prefix: str) -> int:
    """Of files that were read or written, which give way to whoever needs memory."""
    facts = dict(line.split() for line in stat.read_text().splitlines())
    return sum(int(facts.get(f"{prefix}{kind}_file", 0)) for kind in ("inactive", "active"))
