"""Checksums of many rBlocks: in memory an array of eight bytes each, in a message the bytes of that, little-endian.

A worker compares what it found with what a message expects as bytes, at no cost per rBlock.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from distkv.packed_numbers import packed, unpacked


def pack(checksums: Iterable[int]) -> bytes:
    """The checksums (uint64) as a message carries them."""
    return packed(checksums if isinstance(checksums, array) else array("Q", checksums))


def unpack(content: bytes | memoryview) -> array[int]:
    """The checksums of a message, as an `array("Q")` of their own. Raises MalformedMessage for part of one."""
    return unpacked("Q", content, "checksums")
