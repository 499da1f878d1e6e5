"""Options of benchmarks that are lists, with commas."""

from __future__ import annotations

from collections.abc import Collection

from distkv.errors import ConfigError


def sizes_of(name: str, given: str, *, least: int = 1) -> tuple[int, ...]:
    """Raises ConfigError naming the option, for anything but whole numbers from `least` on."""
    sizes = [int(size) for size in given.split(",") if size.isdecimal()]
    if len(sizes) != given.count(",") + 1 or min(sizes) < least:
        raise ConfigError(name, f"{given!r} is not a list of sizes from {least} on", "for example 128,512")
    return tuple(sizes)


def names_of(name: str, given: str, known: Collection[str]) -> tuple[str, ...]:
    """Raises ConfigError naming the option, for a name that is not known."""
    names = tuple(given.split(","))
    if not set(names) <= set(known):
        raise ConfigError(name, f"{given!r} is not a list of {', '.join(known)}", f"for example {next(iter(known))}")
    return names
