"""Numbers of rBlocks as arrays: made once of whatever numbers there are, and then looked at by native calls only."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

FEW = 32
"""So many numbers are gone through one by one in less time than arrays of them are looked at as a whole."""


def numbers_of(slots: Sequence[int]) -> array[int]:
    """int64; the same array if it is one. Raises OverflowError for what is no int64."""
    return slots if type(slots) is array and slots.typecode == "q" else array("q", slots)


def bounds_of(slots: Sequence[int]) -> tuple[int, int]:
    """The least and the largest of at least one."""
    if type(slots) is array and len(slots) > FEW:
        found = np.asarray(slots)
        return int(found.min()), int(found.max())
    return min(slots), max(slots)


def are_equal(found: array[int], expected: Sequence[int]) -> bool:
    """Whether checksums (uint64) are those that were expected, whatever numbers these are."""
    try:
        return found == array("Q", expected)
    except OverflowError:
        return False
