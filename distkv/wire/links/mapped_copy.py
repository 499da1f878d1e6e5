"""Copies between memories that are both mapped here: one native call, or one call a run where there is no library."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from functools import cache

import numpy as np

from distkv.wire.links.native import native
from distkv.wire.links.runs import Runs
from distkv.wire.links.slot_numbers import numbers_of


def copy_runs(pool: memoryview, runs: Runs) -> None:
    """Copy every run out of `pool`; other threads run meanwhile.

    Raises ValueError, with nothing copied, when another thread has released `pool` already.
    """
    base = _address(pool)
    if function := native("copy_runs"):
        function(base, *(one.ctypes.data for one in (runs.remote, runs.local, runs.sizes)), len(runs))
        return
    for remote, local, size in zip(runs.remote.tolist(), runs.local.tolist(), runs.sizes.tolist(), strict=True):
        ctypes.memmove(local, base + remote, size)


def copy_blocks(pool: memoryview, slots: Sequence[int], places: array[int], block_bytes: int) -> None:
    """Copy these blocks of `pool` to these addresses (int64), neighbours at both ends as one run; other threads run
    meanwhile. Raises as `copy_runs` does."""
    base = _address(pool)
    if function := native("copy_blocks"):
        of_slots = numbers_of(slots)
        assert len(of_slots) == len(places)
        function(base, of_slots.buffer_info()[0], places.buffer_info()[0], len(places), block_bytes)
        return
    for slot, place in zip(slots, places, strict=True):
        ctypes.memmove(place, base + slot * block_bytes, block_bytes)


def copy_checked(pool: memoryview, slots: Sequence[int], places: Sequence[int], block_bytes: int) -> array[int]:
    """As `copy_blocks`, one by one; returns the xxh3 (uint64) of each as it was written. Only where `can_check`."""
    base = _address(pool)
    of_slots, to = numbers_of(slots), numbers_of(places)
    found = array("Q", bytes(8 * len(of_slots)))
    function = native("copy_blocks_checked")
    assert function is not None and len(of_slots) == len(to)
    addresses = (one.buffer_info()[0] for one in (of_slots, to, found))
    is_done = function(base, *addresses, len(of_slots), block_bytes)
    assert is_done, "blocks that can be checked"
    return found


@cache
def can_check(block_bytes: int) -> bool:
    """Whether checksums of such blocks are computed on the way here."""
    function = native("copy_blocks_checked")
    return function is not None and bool(function(0, 0, 0, 0, 0, block_bytes))


def _address(pool: memoryview) -> int:
    address: int = np.frombuffer(pool, dtype=np.uint8).__array_interface__["data"][0]
    return address
