"""Beginnings of frames as the native library reads and leaves them."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from itertools import accumulate, chain, pairwise


class Beginnings:
    """One for each layer, as a table of addresses and sizes at `address`, which is good as long as this object is."""

    def __init__(self, frames: Sequence[bytes]) -> None:
        self._bytes = b"".join(frames)
        first = ctypes.cast(ctypes.c_char_p(self._bytes), ctypes.c_void_p).value or 0
        starts = accumulate(map(len, frames), initial=first)
        self._table = array("q", chain.from_iterable((start, end - start) for start, end in pairwise(starts)))
        self.address, _ = self._table.buffer_info()

    def of(self, layer: int) -> tuple[int, int]:
        """Address and size."""
        return self._table[2 * layer], self._table[2 * layer + 1]


def taken_of(received: int, head: int, head_bytes: int, body: int) -> bytes:
    """What was received of a frame that was not to come: its beginning lies at one address, the rest at another."""
    first = min(received, head_bytes)
    return ctypes.string_at(head, first) + ctypes.string_at(body, received - first)
