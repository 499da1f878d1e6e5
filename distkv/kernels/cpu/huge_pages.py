"""Memory for what every step reads from beginning to end, in huge pages where the system gives them to who asks.

A core that reads memory in order comes to another page of 4 KiB every tenth of a microsecond, and has to look up where
that lies; to one of 2 MiB every fifty microseconds.
"""

from __future__ import annotations

import contextlib
import mmap

import torch
from torch import Tensor

PAGE_BYTES = 2 << 20
CHUNK_BYTES = 64 << 20
"""Of address space; pages are taken from the system when they are first written."""
LINE_BYTES = 64


class HugePages:
    """Hands out memory, part after part of large chunks; a chunk goes back to the system once none of its parts is
    left. Used by one thread at a time."""

    def __init__(self) -> None:
        self._chunk = torch.empty(0, dtype=torch.uint8)

    def take(self, num_bytes: int) -> Tensor:
        """Zeroes, uint8 [num_bytes], which begin at a cache line. Raises MemoryError when the system does not give that
        much."""
        size = -(-num_bytes // LINE_BYTES) * LINE_BYTES
        if size > len(self._chunk):
            try:
                self._chunk = _chunk(max(size, CHUNK_BYTES))
            except MemoryError:  # where the address space has a limit there may be room for what is needed
                self._chunk = _chunk(size)
        taken, self._chunk = self._chunk[:num_bytes], self._chunk[size:]
        return taken


def _chunk(num_bytes: int) -> Tensor:
    """Whole huge pages, so many bytes at least."""
    size = -(-num_bytes // PAGE_BYTES) * PAGE_BYTES
    try:
        # Where one begins is up to the system: one page more than that, of which the ends are never written.
        found = mmap.mmap(-1, size + PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no memory for weights of {size} bytes: {error}") from None
    with contextlib.suppress(OSError):  # a kernel without them
        found.madvise(mmap.MADV_HUGEPAGE)
    memory = torch.frombuffer(found, dtype=torch.uint8)
    return memory[-memory.data_ptr() % PAGE_BYTES :][:size]
