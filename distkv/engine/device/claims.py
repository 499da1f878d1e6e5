"""Who shares a GPU: a worker whose pool takes what it finds has to be alone, others say how much they take."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import BinaryIO

from distkv.errors import ConfigError


def claim(place: str, uuid: str, *, alone: bool, directory: Path | None = None) -> BinaryIO | None:
    """Claim a GPU of this machine, until the file that is returned is closed or the process ends. place: its name in
    words. alone: nobody else may have claimed it. None where there can be no file: then nobody is asked.

    Raises ConfigError when one of two would be alone. Processes that do not see each other's files do not see each
    other's claims.
    """
    path = (directory or Path(tempfile.gettempdir())) / f"distkv-{uuid}.claim"
    try:
        descriptor = _open(path)
    except OSError:
        return None
    file = os.fdopen(descriptor, "rb")
    try:
        fcntl.flock(file, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ConfigError(
            "kv_cache_memory_bytes",
            f"another instance computes on {place}, and one of the two has a pool of no given size",
            "give both of them kv_tokens or kv_cache_memory_bytes, or one of them another device",
        ) from None
    return file


def _open(path: Path) -> int:
    """Whoever else uses this machine may claim it too, and reads it for that: nobody writes to it."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return os.open(path, flags)
    os.fchmod(descriptor, 0o644)
    return descriptor
