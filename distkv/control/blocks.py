"""The slots of one KV pool: which state each is in, and which to hand out next.

Each slot is in exactly one of four states. Allocation prefers contiguous runs, because micro-attention, moves and
one-sided reads all cost less over neighbours (004 §4.1). A slot may have several owners, and a key by which what it
holds is found again: two requests with the same prefix can own one slot, which is free when the last lets go.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum


class SlotState(IntEnum):
    """free: nobody's. local: holds (or awaits) rBlocks of this instance's requests. reserved: granted to a debtor,
    nothing in it yet. lent: holds a verified rBlock of a debtor."""

    FREE = 0
    LOCAL = 1
    RESERVED = 2
    LENT = 3


_FREE_RUN = re.compile(bytes([SlotState.FREE]) + b"+")
ContentKey = bytes
"""Names what an rBlock holds: equal keys, equal KV."""


class BlockPool:
    """Allocator over `num_slots` slots. changes: how often a slot changed its state."""

    def __init__(self, num_slots: int) -> None:
        if num_slots < 1:
            raise ValueError(f"a pool needs at least one slot, got {num_slots}")
        self._states = bytearray(num_slots)  # all FREE
        self._counts = [num_slots, 0, 0, 0]  # by state
        self._more_owners: dict[int, int] = {}  # of slots with more than one: how many besides the first
        self._key_of: dict[int, ContentKey] = {}
        self._slot_of: dict[ContentKey, int] = {}
        self._run_length = {0: num_slots}  # first slot of each maximal free run -> its length
        self._run_start = {num_slots: 0}  # slot after each maximal free run -> its first slot
        self._runs = [(num_slots, 0)]  # (length, first slot) of each, ascending
        self.changes = 0

    @property
    def num_slots(self) -> int:
        return len(self._states)

    @property
    def num_free(self) -> int:
        return self._counts[SlotState.FREE]

    def count(self, state: SlotState) -> int:
        """How many slots are in `state`."""
        return self._counts[state]

    def allocate(self, num_slots: int, state: SlotState) -> list[int] | None:
        """Take exactly `num_slots` free slots into `state`, in as few runs as possible, ascending; None if too few."""
        if num_slots > self.num_free:
            return None
        if num_slots == 1:
            return self.allocate_singly(1, state)
        taken: list[int] = []
        while (missing := num_slots - len(taken)) > 0:
            first, length = self._choose_run(missing)
            self._drop_run(first)
            used = min(length, missing)
            if used < length:
                self._add_run(first + used, length - used)
            taken.extend(range(first, first + used))
        self._move(taken, SlotState.FREE, state)
        return sorted(taken)

    def allocate_singly(self, num_slots: int, state: SlotState) -> list[int]:
        """Take free slots as if one was allocated after the other, in this order; there must be so many."""
        taken: list[int] = []
        while (missing := num_slots - len(taken)) > 0:
            taken.extend(self._take_first(missing))
        self._move(taken, SlotState.FREE, state)
        return taken

    def change(self, slots: Iterable[int], old: SlotState, new: SlotState) -> None:
        """Move slots from state `old` to `new`, neither of them FREE."""
        assert SlotState.FREE not in (old, new)
        self._move(list(slots), old, new)

    def share(self, slots: Iterable[int], state: SlotState) -> None:
        """One more owner for each of these slots in `state`; each owner gives them back by `free`."""
        for slot in slots:
            assert self._states[slot] == state != SlotState.FREE, f"slot {slot} is {self._in_words(slot)}"
            self._more_owners[slot] = self._more_owners.get(slot, 0) + 1

    def num_owners(self, slot: int) -> int:
        """How many have to give the slot back until it is free."""
        return 0 if self._states[slot] == SlotState.FREE else 1 + self._more_owners.get(slot, 0)

    def set_content(self, slot: int, key: ContentKey) -> None:
        """The slot holds the content with this key until it is free; the first slot with a key keeps it."""
        assert self._states[slot] != SlotState.FREE, f"slot {slot} is free: it holds nothing"
        if key not in self._slot_of and slot not in self._key_of:
            self._key_of[slot], self._slot_of[key] = key, slot

    def find_content(self, key: ContentKey) -> int | None:
        """The slot that holds the content with this key."""
        return self._slot_of.get(key)

    def free(self, slots: Iterable[int], state: SlotState) -> None:
        """Let go of slots in `state`; those that nobody else owns are free, and what they held is forgotten."""
        slots = [slot for slot in slots if not (self._more_owners and self._is_shared(slot, state))]
        self._move(slots, state, SlotState.FREE)
        for slot in slots if self._key_of else ():
            if (key := self._key_of.pop(slot, None)) is not None:
                del self._slot_of[key]
        for first, length in _runs(slots):
            self._free_run(first, length)

    def validate(self) -> None:
        """Every slot in one state, counts right, and the free runs exactly the free slots."""
        for state in SlotState:
            assert self._counts[state] == self._states.count(state), f"count of {state.name} is off"
        runs = [run.span() for run in _FREE_RUN.finditer(self._states)]
        assert self._run_length == {first: end - first for first, end in runs}, "free runs are off"
        assert self._run_start == {end: first for first, end in runs}, "run ends are off"
        assert self._runs == sorted((end - first, first) for first, end in runs), "an order is off"
        for slot, more in self._more_owners.items():
            assert more > 0 and self._states[slot] != SlotState.FREE, f"slot {slot} is free and has owners"
        assert self._slot_of == {key: slot for slot, key in self._key_of.items()}, "keys and slots disagree"
        assert all(self._states[slot] != SlotState.FREE for slot in self._key_of), "a free slot has a key"

    def _is_shared(self, slot: int, state: SlotState) -> bool:
        """Whether one of several owners lets go now, so that the slot stays in use."""
        more = self._more_owners.get(slot, 0)
        if more:
            assert self._states[slot] == state, f"slot {slot} is {self._in_words(slot)}, not {state.name}"
            if more == 1:
                del self._more_owners[slot]
            else:
                self._more_owners[slot] = more - 1
        return more > 0

    def _in_words(self, slot: int) -> str:
        return SlotState(self._states[slot]).name

    def _choose_run(self, wanted: int) -> tuple[int, int]:
        """The smallest run that holds all, else the largest."""
        at = bisect_left(self._runs, (wanted, 0))
        if at == len(self._runs):
            at = bisect_left(self._runs, (self._runs[-1][0], 0))
        length, first = self._runs[at]
        return first, length

    def _take_first(self, most: int) -> range:
        """The first slots of the smallest run, which stays the smallest, up to so many."""
        length, first = self._runs[0]
        end, after = first + length, first + min(length, most)
        del self._run_length[first]
        if after < end:
            self._runs[0] = end - after, after
            self._run_length[after], self._run_start[end] = end - after, after
        else:
            del self._runs[0], self._run_start[end]
        return range(first, after)

    def _free_run(self, first: int, length: int) -> None:
        """Slots [first, first + length) are free; one run with their free neighbours."""
        if first + length in self._run_length:
            length += self._drop_run(first + length)
        if first in self._run_start:
            first = self._run_start[first]
            length += self._drop_run(first)
        self._add_run(first, length)

    def _add_run(self, first: int, length: int) -> None:
        self._run_length[first] = length
        self._run_start[first + length] = first
        insort(self._runs, (length, first))

    def _drop_run(self, first: int) -> int:
        length = self._run_length.pop(first)
        del self._run_start[first + length]
        del self._runs[bisect_left(self._runs, (length, first))]
        return length

    def _move(self, slots: Sequence[int], old: SlotState, new: SlotState) -> None:
        states = self._states
        for slot in slots:
            assert states[slot] == old, f"slot {slot} is {self._in_words(slot)}, not {old.name}"
            states[slot] = new
        self._counts[old] -= len(slots)
        self._counts[new] += len(slots)
        self.changes += len(slots)


def _runs(slots: Iterable[int]) -> Iterator[tuple[int, int]]:
    """First slot and length of each run of neighbours."""
    first, after = 0, 0
    for slot in sorted(slots):
        if slot != after:
            if after > first:
                yield first, after - first
            first = slot
        after = slot + 1
    if after > first:
        yield first, after - first
