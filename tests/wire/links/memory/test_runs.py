"""Runs of a read: the naive list of one copy per block, made as short as it can be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distkv.wire.links.memory.addressed import Addressed
from distkv.wire.links.memory.mapped_copy import copy_runs
from distkv.wire.links.memory.pool_memory import Part
from distkv.wire.links.memory.runs import Destination, Runs, runs_into_pool, runs_of

NUM_SLOTS = 12

Copy = tuple[int, int, int]
"""First byte in the pool, address here, bytes."""


def listed(runs: Runs) -> list[Copy]:
    return list(zip(runs.remote.tolist(), runs.local.tolist(), runs.sizes.tolist(), strict=True))


def naive(slots: list[int], slot_bytes: int, into: Destination, part: Part | None) -> list[Copy]:
    """One copy for each block, joined to the one before where both ends go on there."""
    first_byte, size = part or (0, slot_bytes)
    places = [
        np.frombuffer(view, dtype=np.uint8).ctypes.data + at
        for view in into
        if view.nbytes
        for at in range(0, view.nbytes, size)
    ]
    joined: list[Copy] = []
    for slot, place in zip(slots, places, strict=True):
        remote = slot * slot_bytes + first_byte
        if joined and joined[-1][0] + joined[-1][2] == remote and joined[-1][1] + joined[-1][2] == place:
            joined[-1] = (*joined[-1][:2], joined[-1][2] + size)
        else:
            joined.append((remote, place, size))
    return joined


@st.composite
def reads(draw: st.DrawFn) -> tuple[list[int], int, list[memoryview], Part | None]:
    """Slots in runs and scattered, into views that follow each other in memory or do not."""
    slot_bytes = draw(st.sampled_from([1, 8, 24]))
    runs = draw(st.lists(st.tuples(st.integers(0, NUM_SLOTS - 1), st.integers(1, 5)), max_size=6))
    slots = [slot for first, count in runs for slot in range(first, min(NUM_SLOTS, first + count))]
    part = None
    if draw(st.booleans()):
        first_byte = draw(st.integers(0, slot_bytes - 1))
        part = first_byte, draw(st.integers(1, slot_bytes - first_byte))
    size = part[1] if part else slot_bytes
    memory = memoryview(bytearray((2 * len(slots) + 1) * size))
    into, left, at = [], len(slots), 0
    while left:
        at += size * draw(st.integers(0, 1))
        count = draw(st.integers(1, left))
        into.append(memory[at : at + count * size])
        at += count * size
        left -= count
    if draw(st.booleans()):
        into.append(memory[:0])
    return slots, slot_bytes, into, part


@given(reads())
def test_they_are_those_of_the_naive_list(read: tuple[list[int], int, list[memoryview], Part | None]) -> None:
    slots, slot_bytes, into, part = read
    assert listed(runs_of(slots, slot_bytes, into, part)) == naive(slots, slot_bytes, into, part)


@given(reads(), st.integers(1, 100))
@settings(max_examples=200)
def test_pieces_are_the_same_bytes(read: tuple[list[int], int, list[memoryview], Part | None], most: int) -> None:
    slots, slot_bytes, into, part = read
    runs = runs_of(slots, slot_bytes, into, part)
    pieces = list(runs.pieces(most))
    assert all(0 < piece.num_bytes <= most for piece in pieces)
    assert all(piece.num_bytes == most for piece in pieces[:-1])
    whole = [byte for first, place, size in listed(runs) for byte in zip(*_ranges(first, place, size), strict=True)]
    cut = [
        byte
        for piece in pieces
        for first, place, size in listed(piece)
        for byte in zip(*_ranges(first, place, size), strict=True)
    ]
    assert cut == whole


@given(reads())
def test_copied_out_of_a_pool(read: tuple[list[int], int, list[memoryview], Part | None]) -> None:
    slots, slot_bytes, into, part = read
    pool = np.random.default_rng(1).integers(0, 256, NUM_SLOTS * slot_bytes, dtype=np.uint8)
    copy_runs(Addressed(memoryview(pool)), runs_of(slots, slot_bytes, into, part))
    first_byte, size = part or (0, slot_bytes)
    starts = [slot * slot_bytes + first_byte for slot in slots]
    assert b"".join(into) == b"".join(pool[start : start + size].tobytes() for start in starts)


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be written"):
        runs_of([0], 8, [memoryview(bytes(8))])


def _ranges(first: int, place: int, size: int) -> tuple[range, range]:
    return range(first, first + size), range(place, place + size)


@given(st.lists(st.integers(0, NUM_SLOTS - 1), max_size=8), st.permutations(range(NUM_SLOTS)))
def test_runs_into_the_own_pool_are_those_into_views_of_it(slots: list[int], order: list[int]) -> None:
    own = memoryview(bytearray(NUM_SLOTS * 16))
    own_slots = order[: len(slots)]
    views = [own[slot * 16 : (slot + 1) * 16] for slot in own_slots]
    address = np.frombuffer(own, dtype=np.uint8).ctypes.data
    assert listed(runs_into_pool(slots, 16, own_slots, address)) == listed(runs_of(slots, 16, views))
