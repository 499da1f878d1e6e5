"""Copies between memories that are both mapped here: one native call, or one call a run where there is no library.

Other threads run meanwhile. One that unmaps what is being read unmaps it when the copy is done; after that all raise
ValueError, with nothing copied.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from functools import cache

from distkv.wire.links.memory.addressed import Addressed
from distkv.wire.links.memory.runs import Runs
from distkv.wire.links.memory.slot_numbers import numbers_of
from distkv.wire.links.native import native


def copy_runs(pool: Addressed, runs: Runs) -> None:
    """Copy every run out of `pool`."""
    with pool.held():
        if function := native("copy_runs"):
            function(pool.address, *(one.ctypes.data for one in (runs.remote, runs.local, runs.sizes)), len(runs))
            return
        for remote, local, size in zip(runs.remote.tolist(), runs.local.tolist(), runs.sizes.tolist(), strict=True):
            ctypes.memmove(local, pool.address + remote, size)


def copy_blocks(pool: Addressed, slots: Sequence[int], places: array[int], block_bytes: int) -> None:
    """Copy these blocks of `pool` to these addresses (int64), neighbours at both ends as one run."""
    with pool.held():
        if function := native("copy_blocks"):
            of_slots = numbers_of(slots)
            assert len(of_slots) == len(places)
            function(pool.address, _address(of_slots), _address(places), len(places), block_bytes)
            return
        for slot, place in zip(slots, places, strict=True):
            ctypes.memmove(place, pool.address + slot * block_bytes, block_bytes)


def copy_checked(pool: Addressed, slots: Sequence[int], places: Sequence[int], block_bytes: int) -> array[int]:
    """As `copy_blocks`, one by one; returns the xxh3 (uint64) of each as it was written. Only where `can_check`."""
    of_slots, to = numbers_of(slots), numbers_of(places)
    found = array("Q", bytes(8 * len(of_slots)))
    function = native("copy_blocks_checked")
    assert function is not None and len(of_slots) == len(to)
    with pool.held():
        is_done = function(pool.address, _address(of_slots), _address(to), _address(found), len(of_slots), block_bytes)
    assert is_done, "blocks that can be checked"
    return found


def checksums_of(pool: Addressed, slots: Sequence[int], block_bytes: int) -> array[int] | None:
    """xxh3 (uint64) of these blocks of `pool` where they lie; None where there is no function for that."""
    function = native("checksum_blocks")
    if function is None or not can_check(block_bytes):
        return None
    of_slots = numbers_of(slots)
    found = array("Q", bytes(8 * len(of_slots)))
    with pool.held():
        is_done = function(pool.address, _address(of_slots), _address(found), len(of_slots), block_bytes)
    assert is_done, "blocks that can be checked"
    return found


@cache
def can_check(block_bytes: int) -> bool:
    """Whether checksums of such blocks are computed on the way here."""
    function = native("copy_blocks_checked")
    return function is not None and bool(function(0, 0, 0, 0, 0, block_bytes))


def _address(numbers: array[int]) -> int:
    return numbers.buffer_info()[0]
