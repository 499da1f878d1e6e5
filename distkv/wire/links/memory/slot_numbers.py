"""Numbers of rBlocks as arrays: made once of whatever numbers there are, and then looked at by native calls only, which
are part of a read that waits for little else where the code of anything larger has left the caches."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from distkv.wire.links.native import native

FEW = 32
"""So many numbers are gone through one by one in less time than arrays of them are looked at as a whole."""


def numbers_of(slots: Sequence[int]) -> array[int]:
    """int64; the same array if it is one. Raises OverflowError for what is no int64."""
    return slots if type(slots) is array and slots.typecode == "q" else array("q", slots)


def bounds_of(slots: Sequence[int]) -> tuple[int, int]:
    """The least and the largest of at least one."""
    if type(slots) is array and len(slots) > FEW:
        if function := native("bounds"):
            low_and_high = array("q", (0, 0))
            function(slots.buffer_info()[0], len(slots), low_and_high.buffer_info()[0])
            return low_and_high[0], low_and_high[1]
        found = np.asarray(slots)
        return int(found.min()), int(found.max())
    return min(slots), max(slots)


def places_at(base: int, numbers: array[int], block_bytes: int) -> array[int]:
    """The address of each of these blocks of memory that begins at `base`."""
    if len(numbers) > FEW and (function := native("places")):
        places = array("q", bytes(8 * len(numbers)))
        function(numbers.buffer_info()[0], len(numbers), base, block_bytes, places.buffer_info()[0])
        return places
    return array("q", [base + number * block_bytes for number in numbers])
