"""Token ids, many of them: in memory an array of four bytes each, in a message the bytes of that, little-endian.

Neither makes an object of each id, so that a long prompt goes through an event loop at the cost of copying it.
"""

from __future__ import annotations

import sys
from array import array

from distkv.errors import MalformedMessage

ID_BYTES = 4
_IS_LITTLE = sys.byteorder == "little"


def pack(ids: array[int]) -> bytes:
    """The ids (an `array("i")`) as a message carries them."""
    return ids.tobytes() if _IS_LITTLE else _swapped(ids).tobytes()


def unpack(packed: bytes | memoryview) -> array[int]:
    """The ids of a message, as an `array("i")` of their own. Raises MalformedMessage for part of an id."""
    if len(packed) % ID_BYTES:
        raise MalformedMessage(f"{len(packed)} bytes are no token ids of {ID_BYTES} bytes each")
    ids = array("i")
    ids.frombytes(packed)
    return ids if _IS_LITTLE else _swapped(ids)


def _swapped(ids: array[int]) -> array[int]:
    swapped = ids[:]
    swapped.byteswap()
    return swapped
