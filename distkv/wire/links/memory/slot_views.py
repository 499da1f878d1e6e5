"""rBlocks of one memory as views, which need not be made one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import overload

import numpy as np

from distkv.wire.links.memory.slot_numbers import bounds_of, numbers_of


class SlotViews(Sequence[memoryview]):
    """The bytes of these slots of `memory`, in order: a view for each run of neighbours, made when it is looked at.

    numbers: the slots as int64, which nobody changes.
    """

    def __init__(self, memory: memoryview, slot_bytes: int, slots: Sequence[int]) -> None:
        """memory: flat bytes. Raises ValueError for a slot that it does not have."""
        num_slots = memory.nbytes // slot_bytes
        try:
            self.numbers = numbers_of(slots)
        except OverflowError:
            raise ValueError(f"slots from {min(slots)} to {max(slots)} of {num_slots}") from None
        low, high = bounds_of(self.numbers) if len(slots) else (0, 0)
        if len(slots) and not 0 <= low <= high < num_slots:
            raise ValueError(f"slots from {low} to {high} of {num_slots}")
        self.memory, self.slot_bytes, self.slots = memory, slot_bytes, slots

    @property
    def nbytes(self) -> int:
        """Of all of them."""
        return len(self.slots) * self.slot_bytes

    def __len__(self) -> int:
        return len(self._bounds)

    def __iter__(self) -> Iterator[memoryview]:
        memory = self.memory
        return iter([memory[start:end] for start, end in self._bounds])

    @overload
    def __getitem__(self, index: int) -> memoryview: ...

    @overload
    def __getitem__(self, index: slice) -> list[memoryview]: ...

    def __getitem__(self, index: int | slice) -> memoryview | list[memoryview]:
        if isinstance(index, slice):
            return list(self)[index]
        start, end = self._bounds[index]
        return self.memory[start:end]

    @cached_property
    def _bounds(self) -> list[tuple[int, int]]:
        """View i is bytes [start, end) of the memory. Not needed by who goes by `slots`."""
        size = self.slot_bytes
        if len(self.slots) <= 1:
            return [(slot * size, (slot + 1) * size) for slot in self.slots]
        slots = np.asarray(self.numbers)
        cuts = np.flatnonzero(np.diff(slots) != 1) + 1
        starts = slots[np.r_[0, cuts]] * size
        ends = (slots[np.r_[cuts, len(slots)] - 1] + 1) * size
        return list(zip(starts.tolist(), ends.tolist(), strict=True))
