"""SlotViews: a list of views that is made only where somebody looks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distkv.wire.links.memory.runs import places_of, read_problem, runs_of
from distkv.wire.links.memory.slot_views import SlotViews

SLOT_BYTES, NUM_SLOTS = 4, 12


def views_one_by_one(memory: memoryview, slots: list[int]) -> list[memoryview]:
    joined: list[list[int]] = []
    for slot in slots:
        if joined and joined[-1][-1] + 1 == slot:
            joined[-1].append(slot)
        else:
            joined.append([slot])
    return [memory[run[0] * SLOT_BYTES : (run[-1] + 1) * SLOT_BYTES] for run in joined]


@given(st.lists(st.integers(0, NUM_SLOTS - 1), max_size=20), st.integers(-3, 3))
def test_they_are_those_of_a_list(slots: list[int], index: int) -> None:
    memory = memoryview(bytearray(range(SLOT_BYTES * NUM_SLOTS)))
    views, expected = SlotViews(memory, SLOT_BYTES, slots), views_one_by_one(memory, slots)
    assert list(views) == expected and len(views) == len(expected)
    assert views[1:] == expected[1:]
    if -len(expected) <= index < len(expected):
        assert views[index] == expected[index]
    else:
        with pytest.raises(IndexError):
            views[index]


@given(st.lists(st.tuples(st.integers(0, NUM_SLOTS - 1), st.integers(0, NUM_SLOTS - 1)), max_size=20))
def test_runs_into_them_are_those_into_a_list(blocks: list[tuple[int, int]]) -> None:
    memory = memoryview(bytearray(SLOT_BYTES * NUM_SLOTS))
    sources, slots = [source for source, _ in blocks], [slot for _, slot in blocks]
    found, expected = (
        runs_of(sources, SLOT_BYTES, into)
        for into in (SlotViews(memory, SLOT_BYTES, slots), views_one_by_one(memory, slots))
    )
    for one in ("remote", "local", "sizes"):
        assert getattr(found, one).tolist() == getattr(expected, one).tolist()


@given(st.lists(st.integers(0, NUM_SLOTS - 1), max_size=20) | st.lists(st.integers(0, NUM_SLOTS - 1), min_size=33))
def test_places_in_them_are_those_in_a_list(slots: list[int]) -> None:
    memory = memoryview(bytearray(SLOT_BYTES * NUM_SLOTS))
    first = np.frombuffer(memory, dtype=np.uint8).ctypes.data
    for into in (SlotViews(memory, SLOT_BYTES, slots), views_one_by_one(memory, slots)):
        assert places_of(into, SLOT_BYTES).addresses.tolist() == [first + slot * SLOT_BYTES for slot in slots]


def test_there_are_no_places_in_memory_that_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="cannot be written"):
        places_of([memoryview(bytes(SLOT_BYTES))], SLOT_BYTES)


@pytest.mark.parametrize("slots", [[-1], [0, NUM_SLOTS]])
def test_slots_that_the_memory_does_not_have_are_refused(slots: list[int]) -> None:
    with pytest.raises(ValueError, match="of 12"):
        SlotViews(memoryview(bytearray(SLOT_BYTES * NUM_SLOTS)), SLOT_BYTES, slots)


class Peer:
    slot_bytes, num_slots = SLOT_BYTES, NUM_SLOTS


@pytest.mark.parametrize(("size", "slots", "part"), [(SLOT_BYTES, [0], None), (8, [0, 1], None), (8, [0, 1], (0, 2))])
def test_blocks_of_another_size_do_not_fit(size: int, slots: list[int], part: tuple[int, int] | None) -> None:
    into = SlotViews(memoryview(bytearray(SLOT_BYTES * NUM_SLOTS)), size, slots)
    with pytest.raises(ValueError, match="do not fit"):
        read_problem(Peer(), [0, 1], into, part)
    assert read_problem(Peer(), [0] * len(slots), SlotViews(into.memory, 4, slots), None) == ""
