"""Checkpoints whose large files Git LFS has not brought yet."""

from __future__ import annotations

from pathlib import Path

from distkv.errors import CheckpointError

_POINTER = b"version https://git-lfs"


def refuse_pointer(file: Path) -> None:
    """Raises CheckpointError for what stands in the place of a file, OSError if it cannot be read."""
    with file.open("rb") as stream:
        beginning = stream.read(len(_POINTER))
    if beginning == _POINTER:
        raise CheckpointError(str(file), "is a pointer of Git LFS to the file; run: git lfs pull")
