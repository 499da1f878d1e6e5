"""Beginnings of frames as the native library reads and leaves them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate


class Beginnings:
    """One for each layer, where the library finds them."""

    def __init__(self, frames: Sequence[bytes]) -> None:
        self._bytes = b"".join(frames)
        first = ctypes.cast(ctypes.c_char_p(self._bytes), ctypes.c_void_p).value or 0
        self._starts = list(accumulate(map(len, frames), initial=first))

    def of(self, layer: int) -> tuple[int, int]:
        """Address and size."""
        start = self._starts[layer]
        return start, self._starts[layer + 1] - start


def taken_of(received: int, head: int, head_bytes: int, body: int) -> bytes:
    """What was received of a frame that was not to come: its beginning lies at one address, the rest at another."""
    first = min(received, head_bytes)
    return ctypes.string_at(head, first) + ctypes.string_at(body, received - first)
