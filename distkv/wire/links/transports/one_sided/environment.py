"""Environment variables for as long as a library reads them."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping

QUIET = {"UCX_LOG_LEVEL": "fatal", "UCX_DEBUG_SIGNO": "0"}
"""What UCX reads when it is loaded: nothing is printed, failures come back as a status; and SIGHUP is left alone."""

_lock = threading.Lock()


@contextlib.contextmanager
def environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """With these variables, each unless it is set already: what UCX takes in no other way."""
    with _lock:
        added = [name for name in wanted if name not in os.environ]
        os.environ.update({name: wanted[name] for name in added})
        try:
            yield
        finally:
            for name in added:
                del os.environ[name]
