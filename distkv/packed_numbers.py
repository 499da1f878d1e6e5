"""Many numbers in a message: the bytes of an array of them, little-endian, so that decoding makes no object of each."""

from __future__ import annotations

import sys
from array import array

from distkv.errors import MalformedMessage

_IS_LITTLE = sys.byteorder == "little"


def packed(numbers: array[int]) -> bytes:
    """The numbers as a message carries them."""
    return numbers.tobytes() if _IS_LITTLE else _swapped(numbers).tobytes()


def unpacked(typecode: str, content: bytes | memoryview, what: str) -> array[int]:
    """The numbers of a message, as an array of their own. what: they are. Raises MalformedMessage for part of one."""
    numbers = array(typecode)
    if len(content) % numbers.itemsize:
        raise MalformedMessage(f"{len(content)} bytes are no {what} of {numbers.itemsize} bytes each")
    numbers.frombytes(content)
    return numbers if _IS_LITTLE else _swapped(numbers)


def _swapped(numbers: array[int]) -> array[int]:
    swapped = numbers[:]
    swapped.byteswap()
    return swapped
