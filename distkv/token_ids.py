"""Token ids, many of them: in memory an array of four bytes each, in a message the bytes of that, little-endian.

Neither makes an object of each id, so that a long prompt goes through an event loop at the cost of copying it.
"""

from __future__ import annotations

from array import array

from distkv.packed_numbers import packed, unpacked

ID_BYTES = 4


def pack(ids: array[int]) -> bytes:
    """The ids (an `array("i")`) as a message carries them."""
    return packed(ids)


def unpack(content: bytes | memoryview) -> array[int]:
    """The ids of a message, as an `array("i")` of their own. Raises MalformedMessage for part of an id."""
    return unpacked("i", content, "token ids")
