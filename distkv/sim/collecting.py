"""Garbage in circles is looked for rarely while a cluster is simulated."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = 10_000, 500, 100
"""As in the processes (`cli.daemons.daemon`). What happens in a cluster leaves nothing in circles: looking for it took
7 % of the time of 500 instances with two requests each, 2 % so, for as much memory."""


@contextmanager
def rarely_collected() -> Iterator[None]:
    """While inside, collections are as rare as THRESHOLDS say; then as they were."""
    before = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
