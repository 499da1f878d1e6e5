"""What Linux's control groups leave to this process, as in a container: groups around it count, too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

GROUPS = Path("/proc/self/cgroup")
ROOT = Path("/sys/fs/cgroup")


def levels(controller: str, groups: Path = GROUPS, root: Path = ROOT) -> Iterator[tuple[Path, bool]]:
    """Directories of each group that has this controller and of those around it, and whether they are of version 2;
    within a container the outer ones are not seen, and the root is its own.

    groups, root: where the system says in which groups this process is, and what they have.
    """
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        start = root / controller if controllers else root
        inner = PurePosixPath(path.lstrip("/"))
        for level in (inner, *inner.parents):
            yield start / level, not controllers


def usable_threads(cores: int = 0, groups: Path = GROUPS, root: Path = ROOT) -> int:
    """How many threads of this process can compute all the time: one for each core it may use, or of so many of them if
    that is given, but no more than the whole cores that a quota amounts to. More would use that up before each period
    is over, and all stand still together for the rest of it. At least one."""
    found = float(cores or len(os.sched_getaffinity(0)))
    for place, is_v2 in levels("cpu", groups, root):
        try:
            if is_v2:
                quota, period = (place / "cpu.max").read_text().split()
            else:
                quota, period = ((place / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            share = int(quota) / int(period)
        except (OSError, ValueError, ZeroDivisionError):  # none, or "max"
            continue
        if share > 0:  # a quota of -1 is none
            found = min(found, share)
    return max(1, int(found))
