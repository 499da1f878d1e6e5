"""rBlocks of one memory as views, which need not be made one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray


class SlotViews(Sequence[memoryview]):
    """The bytes of these slots of `memory`, in order: a view for each run of neighbours, made when it is looked at."""

    def __init__(self, memory: memoryview, slot_bytes: int, slots: Sequence[int]) -> None:
        """memory: flat bytes. Raises ValueError for a slot that it does not have."""
        self.memory, self.slot_bytes = memory, slot_bytes
        self.slots: NDArray[np.int64] = np.asarray(slots, dtype=np.int64)
        if len(slots) and not 0 <= self.slots.min() <= self.slots.max() < memory.nbytes // slot_bytes:
            raise ValueError(f"slots from {self.slots.min()} to {self.slots.max()} of {memory.nbytes // slot_bytes}")
        # Bytes [starts[i], ends[i]) of the memory are view i.
        cuts = np.flatnonzero(np.diff(self.slots) != 1) + 1
        has_any = len(self.slots) > 0
        self._starts = (self.slots[np.r_[0, cuts]] * slot_bytes).tolist() if has_any else []
        self._ends = ((self.slots[np.r_[cuts, len(self.slots)] - 1] + 1) * slot_bytes).tolist() if has_any else []

    @property
    def nbytes(self) -> int:
        """Of all of them."""
        return len(self.slots) * self.slot_bytes

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[memoryview]:
        memory = self.memory
        return iter([memory[start:end] for start, end in zip(self._starts, self._ends, strict=True)])

    @overload
    def __getitem__(self, index: int) -> memoryview: ...

    @overload
    def __getitem__(self, index: slice) -> list[memoryview]: ...

    def __getitem__(self, index: int | slice) -> memoryview | list[memoryview]:
        if isinstance(index, slice):
            return list(self)[index]
        return self.memory[self._starts[index] : self._ends[index]]
