"""The functions of the native library that move bytes: all of it that needs no torch. An installation may lack them, or
have an older library."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

LIBRARY = Path(__file__).parents[2] / "kernels" / "cpu" / "_native.so"
_POINTER, _NUMBER, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "copy_runs": (None, _POINTER, _POINTER, _POINTER, _POINTER, _NUMBER),
    "copy_blocks": (None, _POINTER, _POINTER, _POINTER, _NUMBER, _NUMBER),
    "copy_blocks_checked": (_INT, _POINTER, _POINTER, _POINTER, _POINTER, _NUMBER, _NUMBER),
    "checksum_blocks": (_INT, _POINTER, _POINTER, _POINTER, _NUMBER, _NUMBER),
    "bounds": (None, _POINTER, _NUMBER, _POINTER),
    "places": (None, _POINTER, _NUMBER, _NUMBER, _NUMBER, _POINTER),
    "receive_blocks": (_INT, _INT, _POINTER, _POINTER, _NUMBER, _NUMBER, ctypes.c_double, _POINTER),
    "send_blocks": (_INT, _INT, ctypes.c_char_p, _NUMBER, _POINTER, _POINTER, _NUMBER, _NUMBER, ctypes.c_double),
}
"""What each returns, and what it takes."""

Function = Callable[..., Any]
"""Other threads run meanwhile. Nothing is checked: see the sources for what pointers point to."""


@cache
def native(name: str, library: Path = LIBRARY) -> Function | None:
    """`distkv_<name>`, None where there is none."""
    try:
        function = getattr(ctypes.CDLL(str(library)), f"distkv_{name}")
    except (OSError, AttributeError):
        return None
    function.restype, *function.argtypes = _SIGNATURES[name]
    found: Function = function
    return found
