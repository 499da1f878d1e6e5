"""Copies runs out of memory that this process has mapped."""

from __future__ import annotations

import ctypes

import numpy as np

from distkv.wire.links.runs import Runs


def copy_runs(pool: memoryview, runs: Runs) -> None:
    """Copy every run out of `pool`; other threads run meanwhile.

    Raises ValueError, with nothing copied, when another thread has released `pool` already.
    """
    source = np.frombuffer(pool, dtype=np.uint8)
    base = source.ctypes.data
    for remote, local, size in zip(runs.remote.tolist(), runs.local.tolist(), runs.sizes.tolist(), strict=True):
        ctypes.memmove(local, base + remote, size)
