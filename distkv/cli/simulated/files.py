"""What simulations write."""

from __future__ import annotations

from pathlib import Path

from distkv.errors import ConfigError


def write(path: Path, data: bytes, option: str = "json") -> None:
    """Raises ConfigError that names the option which asked for it, if it cannot be written."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ConfigError(option, f"cannot write {path}: {error.strerror}") from None
