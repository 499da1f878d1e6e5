"""How a person writes what happens to the processes of a simulated cluster: `i3@60`, `gmanager@30-40`,
`i2@10-50x3`."""

from __future__ import annotations

import re

from distkv.errors import ConfigError
from distkv.sim.spec import Fault, Kill, Restart, Slow

MOST_S = 1e9
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_FAULT = re.compile(rf"(?P<name>[^@\s]+)@{_NUMBER}(?:-{_NUMBER})?(?:x{_NUMBER})?")


def failure(text: str) -> tuple[Fault, ...]:
    """`i3@60`: it dies; `i3@60-90`: and is started again. Raises ConfigError, as the others do."""
    name, at_s, until_s, factor = _read("fail", text, "NAME@SECONDS or NAME@FROM-TO, as i3@60 or gmanager@30-40")
    if factor is not None:
        raise _wrong("fail", text, "no factor: --slow has one")
    return (Kill(at_s, name),) if until_s is None else (Kill(at_s, name), Restart(until_s, name))


def restart(text: str) -> tuple[Fault, ...]:
    """`i3@90`."""
    name, at_s, until_s, factor = _read("restart", text, "NAME@SECONDS, as i3@90")
    if until_s is not None or factor is not None:
        raise _wrong("restart", text, "one time: NAME@SECONDS, as i3@90")
    return (Restart(at_s, name),)


def slowness(text: str) -> tuple[Fault, ...]:
    """`i2@10-50x3`."""
    shape = "NAME@FROM-TOxFACTOR, as i2@10-50x3"
    name, at_s, until_s, factor = _read("slow", text, shape)
    if until_s is None or factor is None:
        raise _wrong("slow", text, shape)
    if factor <= 0:
        raise _wrong("slow", text, "a factor above 0")
    return (Slow(at_s, until_s, name, factor),)


def _read(flag: str, text: str, shape: str) -> tuple[str, float, float | None, float | None]:
    found = _FAULT.fullmatch(text.strip())
    if found is None:
        raise _wrong(flag, text, shape)
    at_s, until_s, factor = (None if part is None else float(part) for part in found.groups()[1:])
    assert at_s is not None
    if max(at_s, until_s or 0.0, factor or 0.0) > MOST_S:
        raise _wrong(flag, text, f"numbers of at most {MOST_S:g}")
    if until_s is not None and until_s <= at_s:
        raise _wrong(flag, text, f"an end after {at_s:g} s")
    return found["name"], at_s, until_s, factor


def _wrong(flag: str, text: str, expected: str) -> ConfigError:
    got = repr(text) if len(text) <= 40 else f"{len(text)} characters"
    return ConfigError(flag, f"expected {expected}, got {got}")
