"""Copies runs between memories that are both mapped here: one native call, or one call a run where there is no library.

The function is part of the library of the CPU kernels, of which this is all that needs no torch.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from distkv.wire.links.runs import Runs

LIBRARY = Path(__file__).parents[2] / "kernels" / "cpu" / "_native.so"
_ARGUMENTS = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)

CopyRuns = Callable[[int, Runs], None]
"""Takes the address of the pool that the runs count from. Other threads run meanwhile."""


def copy_runs(pool: memoryview, runs: Runs) -> None:
    """Copy every run out of `pool`; other threads run meanwhile.

    Raises ValueError, with nothing copied, when another thread has released `pool` already.
    """
    source = np.frombuffer(pool, dtype=np.uint8)
    copier()(source.ctypes.data, runs)


@cache
def copier() -> CopyRuns:
    """The native function if this installation has it."""
    return native_copier(LIBRARY) or copy_one_by_one


def native_copier(library: Path) -> CopyRuns | None:
    """The function of this library; None if there is none, or it is older."""
    try:
        function = ctypes.CDLL(str(library)).distkv_copy_runs
    except (OSError, AttributeError):
        return None
    function.restype, function.argtypes = None, _ARGUMENTS

    def copy(base: int, runs: Runs) -> None:
        function(base, *(one.ctypes.data for one in (runs.remote, runs.local, runs.sizes)), len(runs))

    return copy


def copy_checked(pool: memoryview, slots: Sequence[int], places: Sequence[int], block_bytes: int) -> list[int]:
    """Copy these blocks of `pool` to these addresses; returns the xxh3 of each as it was written. Other threads run
    meanwhile. Only where `can_check`. Raises ValueError as `copy_runs` does."""
    source = np.frombuffer(pool, dtype=np.uint8)
    of_slots, to = array("q", slots), array("q", places)
    found = array("Q", bytes(8 * len(of_slots)))
    function = _native_check()
    assert function is not None and len(of_slots) == len(to)
    addresses = (one.buffer_info()[0] for one in (of_slots, to, found))
    is_done = function(source.__array_interface__["data"][0], *addresses, len(of_slots), block_bytes)
    assert is_done, "blocks that can be checked"
    return found.tolist()


@cache
def can_check(block_bytes: int) -> bool:
    """Whether checksums of such blocks are computed on the way here."""
    function = _native_check()
    return function is not None and bool(function(0, 0, 0, 0, 0, block_bytes))


@cache
def _native_check() -> Callable[..., int] | None:
    try:
        function = ctypes.CDLL(str(LIBRARY)).distkv_copy_blocks_checked
    except (OSError, AttributeError):
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    function.restype, function.argtypes = ctypes.c_int, (pointer, pointer, pointer, pointer, number, number)
    checked: Callable[..., int] = function
    return checked


def copy_one_by_one(base: int, runs: Runs) -> None:
    """See CopyRuns."""
    for remote, local, size in zip(runs.remote.tolist(), runs.local.tolist(), runs.sizes.tolist(), strict=True):
        ctypes.memmove(local, base + remote, size)
