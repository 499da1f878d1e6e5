"""NIXL's own module, of whichever package is installed. Importing this raises ImportError where there is none."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
from collections.abc import Iterator
from typing import Any

from distkv.wire.links.transports.one_sided.environment import QUIET, environment
from distkv.wire.links.transports.one_sided.errors import OneSidedError

PACKAGES = ("nixl_cu12", "nixl_cu13")
"""They differ in the version of CUDA that they are built for; without a GPU it does not matter which."""


class NixlError(OneSidedError):
    """A call of NIXL failed."""

    library = "NIXL"


def _load() -> tuple[str, Any]:
    for package in PACKAGES:
        try:
            return package, importlib.import_module(f"{package}._bindings")
        except ModuleNotFoundError as error:
            if error.name != package:
                raise
    raise ImportError(f"none of the packages {', '.join(PACKAGES)} is installed")


with environment({"NIXL_LOG_LEVEL": "FATAL", **QUIET}):
    _package, nixl = _load()

version = ".".join(importlib.metadata.version(_package.replace("_", "-")).split(".")[:2])
"""Major and minor: those who exchange metadata have the same."""

_FAILURES: tuple[type[Exception], ...] = (
    *(one for one in vars(nixl).values() if isinstance(one, type) and issubclass(one, Exception)),
    RuntimeError,
    ValueError,
)


@contextlib.contextmanager
def failing_as(what: str) -> Iterator[None]:
    """Turn what NIXL raises into NixlError."""
    try:
        yield
    except _FAILURES as error:
        raise NixlError(f"{what}: {error}") from None
