"""NIXL's own module, of whichever package is installed. Importing this raises ImportError where there is none."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from distkv.wire.links.transports.one_sided.errors import OneSidedError

PACKAGES = ("nixl_cu12", "nixl_cu13")
"""They differ in the version of CUDA that they are built for; without a GPU it does not matter which."""


class NixlError(OneSidedError):
    """A call of NIXL failed."""

    library = "NIXL"


QUIET = {"NIXL_LOG_LEVEL": "FATAL", "UCX_LOG_LEVEL": "fatal", "UCX_DEBUG_SIGNO": "0"}
"""What NIXL and its UCX read when they are loaded: nothing is printed, failures come back as a status; and SIGHUP is
left alone."""

_environment_lock = threading.Lock()


@contextlib.contextmanager
def environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """With these variables, each unless it is set already: what UCX takes in no other way."""
    with _environment_lock:
        added = [name for name in wanted if name not in os.environ]
        os.environ.update({name: wanted[name] for name in added})
        try:
            yield
        finally:
            for name in added:
                del os.environ[name]


def _load() -> tuple[str, Any]:
    for package in PACKAGES:
        try:
            return package, importlib.import_module(f"{package}._bindings")
        except ModuleNotFoundError as error:
            if error.name != package:
                raise
    raise ImportError(f"none of the packages {', '.join(PACKAGES)} is installed")


with environment(QUIET):
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
