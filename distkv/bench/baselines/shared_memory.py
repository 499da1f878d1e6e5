"""Shared memory of a baseline's processes: killed ones leave it behind, where it stays until the machine restarts."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

SHM = Path("/dev/shm")
_PROC = Path("/proc")

Inode = tuple[int, int]
"""Device and number of a file."""


class SharedMemory:
    """Files in SHM that processes of some sessions have mapped: theirs by number, whatever they are called."""

    def __init__(self) -> None:
        self._found: dict[Path, Inode] = {}

    def note(self, session: int) -> None:
        """Remember what its processes have mapped now."""
        mapped = {inode for pid in _processes_of(session) for inode in _mapped_by(pid)}
        for path in SHM.iterdir() if mapped else ():
            if (inode := _inode_of(path)) in mapped:
                self._found[path] = inode

    def remove(self) -> None:
        """Remove what was noted and is still there, once those processes have ended."""
        for path, inode in self._found.items():
            if _inode_of(path) == inode:
                with contextlib.suppress(OSError):
                    path.unlink()
        self._found.clear()


def _processes_of(session: int) -> Iterator[int]:
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if os.getsid(pid := int(entry.name)) == session:
                    yield pid


def _mapped_by(pid: int) -> Iterator[Inode]:
    """Files in SHM, by number: a semaphore is mapped before it has its name."""
    with contextlib.suppress(OSError):
        for line in (_PROC / f"{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines():
            _, _, _, device, number, *path = line.split(maxsplit=5)
            if path and path[0].startswith(f"{SHM}/"):
                major, minor = (int(part, 16) for part in device.split(":"))
                yield os.makedev(major, minor), int(number)


def _inode_of(path: Path) -> Inode:
    """(0, 0) if there is no such file."""
    with contextlib.suppress(OSError):
        found = path.lstat()
        if stat.S_ISREG(found.st_mode):
            return found.st_dev, found.st_ino
    return 0, 0
