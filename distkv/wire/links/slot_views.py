"""rBlocks of one memory as views, which need not be made one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray


class SlotViews(Sequence[memoryview]):
    """The bytes of these slots of `memory`, in order: a view for each run of neighbours, made when it is looked at."""

    def __init__(self, memory: memoryview, slot_bytes: int, slots: Sequence[int]) -> None:
        """Raises ValueError for a slot that the memory does not have."""
        if slots and not 0 <= min(slots) <= max(slots) < memory.nbytes // slot_bytes:
            raise ValueError(f"slots from {min(slots)} to {max(slots)} of {memory.nbytes // slot_bytes}")
        self.memory, self.slot_bytes = memory, slot_bytes
        self.slots: NDArray[np.int64] = np.asarray(slots, dtype=np.int64)
        cuts = np.flatnonzero(np.diff(self.slots) != 1) + 1
        self._first = [0, *cuts.tolist()] if len(self.slots) else []

    def __len__(self) -> int:
        return len(self._first)

    @overload
    def __getitem__(self, index: int) -> memoryview: ...

    @overload
    def __getitem__(self, index: slice) -> list[memoryview]: ...

    def __getitem__(self, index: int | slice) -> memoryview | list[memoryview]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        first = self._first[index]
        after = self._first[index + 1] if -1 != index < len(self) - 1 else len(self.slots)
        start = int(self.slots[first]) * self.slot_bytes
        return self.memory[start : start + (after - first) * self.slot_bytes]
