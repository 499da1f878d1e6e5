"""A system that gives a process no more threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

NO_THREAD = "can't start new thread"


@contextmanager
def no_threads() -> Iterator[None]:
    """While this lasts, none can be started."""
    with patch.object(threading.Thread, "start", side_effect=RuntimeError(NO_THREAD)):
        yield
