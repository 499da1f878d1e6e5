"""The native library as this installation has it: which levels it was built for, and their functions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from distkv.kernels.cpu.calls import functions

PATH = Path(__file__).parents[1] / "_native.so"
ABI = 7
"""The number in native/abi.h that goes with the signatures in `functions`."""
LEVELS = ("amx", "avx512bf16", "avx512", "avx2", "portable")
"""Best first. In the library's own order, which is the reverse, each has a bit in `machine_levels`."""
REBUILD = "install distkv again, or run: python setup.py build_ext --inplace"


class Native:
    """The functions of one level, under their names in `functions` without prefix and suffix.

    Calls release the interpreter. They check types of arguments, not what pointers point to. has_exchange: whether
    those of `functions.EXCHANGE` are there.
    """

    def __init__(self, handle: ctypes.CDLL, level: str) -> None:
        """Raises AttributeError when the library lacks one of them."""
        self.level = level
        for name, signature in functions.SHARED.items():
            setattr(self, name, _bound(handle, f"distkv_{name}", signature))
        for name, signature in functions.OF_LEVEL.items():
            setattr(self, name, _bound(handle, f"distkv_{name}_{level}", signature))
        self.has_exchange = hasattr(handle, "distkv_exchange")
        for name, signature in functions.EXCHANGE.items() if self.has_exchange else ():
            setattr(self, name, _bound(handle, f"distkv_{name}", signature))

    def address(self, name: str) -> int:
        """Of a function, for other functions of the library to call."""
        function: Any = getattr(self, name)
        return ctypes.cast(function, ctypes.c_void_p).value or 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(f"the native library declares no function {name}")

    def __repr__(self) -> str:
        return f"Native({self.level})"


@dataclass(frozen=True)
class Library:
    """levels: those that can be called if the machine can run them. machine: those that it can run.

    missing: why a level is not in `levels`. slow: those that the next one computes faster than on this machine.
    """

    levels: Mapping[str, Native]
    machine: frozenset[str]
    missing: Mapping[str, str]
    slow: frozenset[str] = frozenset()

    @classmethod
    def load(cls, path: Path = PATH) -> Library:
        """What there is; without a library that can be used, every level is missing."""
        left_out = _left_out(path.with_suffix(".txt"))
        if not path.exists():
            return _nothing(left_out.get("all", f"the native library was not built ({REBUILD})"))
        try:
            handle = ctypes.CDLL(str(path))
            bits = int(_bound(handle, "distkv_machine_levels", functions.SHARED["machine_levels"])())
            has_slow_pairs = _bound(
                handle, "distkv_machine_has_slow_pairs", functions.SHARED["machine_has_slow_pairs"]
            )()
        except (OSError, AttributeError) as error:
            return _nothing(f"the native library cannot be loaded: {error} ({REBUILD})")
        levels: dict[str, Native] = {}
        missing: dict[str, str] = {}
        for level in LEVELS:
            if level in left_out:
                missing[level] = left_out[level]
                continue
            try:
                native = Native(handle, level)
            except AttributeError as error:
                missing[level] = f"the native library is of other sources: {error} ({REBUILD})"
                continue
            if (found := native.abi()) == ABI:
                levels[level] = native
            else:
                missing[level] = f"the native library has interface {found}, {ABI} is needed ({REBUILD})"
        machine = frozenset(one for bit, one in enumerate(reversed(LEVELS)) if bits >> bit & 1)
        return cls(levels, machine, missing, frozenset({"avx512bf16"} if has_slow_pairs else ()))


@cache
def installed() -> Library:
    """The library of this installation, loaded once."""
    return Library.load()


def _nothing(why: str) -> Library:
    return Library({}, frozenset(), dict.fromkeys(LEVELS, why))


def _left_out(notes: Path) -> dict[str, str]:
    """What the build left out, "all" or levels, and why."""
    try:
        lines = notes.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return {name: why for name, _, why in (line.partition(": ") for line in lines)}


def _bound(handle: ctypes.CDLL, symbol: str, signature: functions.Signature) -> Callable[..., Any]:
    function = handle[symbol]
    function.restype, function.argtypes = signature
    return function
