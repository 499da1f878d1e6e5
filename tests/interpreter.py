"""Triton's interpreter, quicker: it looks for the built-in functions of its language whenever a kernel is launched or
calls a function, which takes a quarter of the time of such tests. They do not change, and are found once."""

from __future__ import annotations

import importlib.util
import inspect
import os
from functools import cache
from typing import Any


def find_builtins_once() -> None:
    """Where kernels are interpreted. Call it before any of them ran."""
    if os.environ.get("TRITON_INTERPRET") != "1" or importlib.util.find_spec("triton") is None:
        return
    from triton.language.core import is_builtin
    from triton.runtime import interpreter

    @cache
    def builtins_of(package: Any) -> list[tuple[str, Any]]:
        return [(name, member) for name, member in inspect.getmembers(package) if is_builtin(member)]

    def patch_builtins(package: Any, *rest: Any) -> None:
        for name, member in builtins_of(package):
            if getattr(package, name) is member:  # and not yet what stands for it while a kernel runs
                interpreter._patch_attr(package, name, member, *rest)

    interpreter._patch_builtin = patch_builtins
