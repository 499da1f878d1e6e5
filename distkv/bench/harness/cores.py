"""Which cores a benchmark and what it starts run on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def two_cores() -> Iterator[tuple[int | None, int | None]]:
    """One that this process stays on meanwhile, and one for others; none where there are not two."""
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        yield None, None
        return
    own, others = sorted(before)[:2]
    os.sched_setaffinity(0, [own])
    try:
        yield own, others
    finally:
        os.sched_setaffinity(0, before)
