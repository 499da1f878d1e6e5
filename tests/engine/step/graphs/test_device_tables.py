"""Tables on the device are what the newest steps say, and only what differs is written."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distkv.engine.step.graphs.device_tables import DeviceTables, TakenTables
from distkv.wire.messages.common import Run
from tests.examples import examples

BLOCKS, SLOTS = 10, 40


class Pool:
    num_slots = SLOTS


def tables_of(num_tables: int = 3) -> DeviceTables:
    return DeviceTables(Pool(), torch.device("cpu"), num_tables, BLOCKS)  # type: ignore[arg-type]


def written(tables: DeviceTables) -> None:
    """What has changed is on the device."""
    at, slots = tables.take_changes()
    tables.tensor[torch.from_numpy(at)] = torch.from_numpy(slots.astype(np.int32))


def take(tables: DeviceTables, locals_of: dict[str, tuple[Run, ...]]) -> TakenTables | None:
    """One step; its changes are written."""
    taken = tables.take(list(locals_of), list(locals_of.values()))
    written(tables)
    return taken


def runs_of(first_block: int, slots: list[int]) -> tuple[Run, ...]:
    """As few runs as hold these slots."""
    runs: list[Run] = []
    for block, slot in enumerate(slots, first_block):
        if runs and runs[-1].first_slot + runs[-1].num_blocks == slot:
            runs[-1] = Run(runs[-1].first_block, runs[-1].first_slot, runs[-1].num_blocks + 1)
        else:
            runs.append(Run(block, slot, 1))
    return tuple(runs)


tables = st.tuples(st.integers(0, 2), st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=BLOCKS))


@given(st.lists(st.dictionaries(st.sampled_from("abcde"), tables, min_size=1, max_size=3), min_size=1, max_size=12))
@settings(max_examples=examples(150), deadline=None)
def test_they_hold_what_steps_say(steps: list[dict[str, tuple[int, list[int]]]]) -> None:
    """Five requests share three tables; one in a while is forgotten."""
    device_tables = tables_of()
    for number, step in enumerate(steps):
        taken = take(device_tables, {name: runs_of(*one) for name, one in step.items()})
        assert taken is not None
        places = taken.tables.tolist()
        assert len(set(places)) == len(step)
        for place, (_, slots) in zip(places, step.values(), strict=True):
            assert device_tables.tensor[place * BLOCKS : place * BLOCKS + len(slots)].tolist() == slots
        assert taken.first_blocks.tolist() == [first for first, _ in step.values()]
        last = np.array([first + len(slots) - 1 for first, slots in step.values()])
        found = device_tables.slots(taken, last)
        assert found is not None and found.tolist() == [slots[-1] for _, slots in step.values()]
        for index in range(len(step)):
            one = np.arange(len(step)) == index
            assert device_tables.slots(taken, last + one) is None
            before_first = np.where(one, taken.first_blocks - 1, last)
            assert device_tables.slots(taken, before_first) is None
        if number % 4 == 3:
            device_tables.forget(["a"])


grown = st.lists(st.lists(st.sampled_from(["same", "grown", "other slots", "shifted"]), min_size=3, max_size=3))


@given(grown)
@settings(max_examples=examples(150), deadline=None)
def test_a_step_of_the_same_sequences_is_what_a_first_one_would_be(steps: list[list[str]]) -> None:
    """Each sequence stays as it is, grows, moves, or loses its first block."""
    device_tables = tables_of()
    step = {name: (0, [10 * place, 10 * place + 1]) for place, name in enumerate("abc")}
    before, firsts = None, [0, 0, 0]
    for changes in steps:
        for (name, (first, slots)), change in zip(list(step.items()), changes, strict=True):
            if change == "grown" and len(slots) < BLOCKS:
                step[name] = first, [*slots, (slots[-1] + 1) % SLOTS]
            elif change == "other slots":
                step[name] = first, [(slot + 3) % SLOTS for slot in slots]
            elif change == "shifted" and len(slots) > 1:
                step[name] = first + 1, slots[1:]
        locals_of = {name: runs_of(*one) for name, one in step.items()}
        taken, alone = take(device_tables, locals_of), take(tables_of(), locals_of)
        assert taken is not None and alone is not None
        assert taken.counts.tolist() == alone.counts.tolist()
        assert taken.first_blocks.tolist() == alone.first_blocks.tolist()
        for place, (_, slots) in zip(taken.tables.tolist(), step.values(), strict=True):
            assert device_tables.tensor[place * BLOCKS : place * BLOCKS + len(slots)].tolist() == slots
        # What was planned for it holds as long as it is the same object.
        if before is not None:
            assert (taken is before) == (taken.first_blocks.tolist() == firsts)
        before, firsts = taken, taken.first_blocks.tolist()


def test_only_what_differs_is_written() -> None:
    device_tables = tables_of()

    def changes(*local: Run) -> int:
        assert device_tables.take(["a"], [local]) is not None
        return len(device_tables.take_changes()[0])

    assert changes(Run(0, 5, 3)) == 3
    assert changes(Run(0, 5, 3)) == 0
    assert changes(Run(0, 5, 4)) == 1
    assert changes(Run(0, 5, 4), Run(4, 20, 1)) == 1
    assert changes(Run(0, 5, 3), Run(3, 30, 2)) == 2
    assert changes(Run(0, 5, 2)) == 0
    assert changes(Run(1, 6, 2)) == 2


def test_what_does_not_fit_has_no_table() -> None:
    """Too long, with a gap, outside of the pool, none at all; and more at once than there are tables."""
    device_tables = tables_of()
    one = (Run(0, 3, 1),)
    for local in [(Run(0, 0, 11),), (Run(0, 0, 2), Run(3, 2, 1)), (Run(0, 39, 2),), (), (Run(0, 0, 0),)]:
        assert take(device_tables, {"a": local}) is None
        assert take(device_tables, {"b": one}) is not None
        # As the first step of a sequence and as a later one.
        assert take(device_tables, {"b": local}) is None
        assert take(device_tables, {"b": one}) is not None
    assert take(device_tables, dict.fromkeys("abcd", one)) is None
    assert take(device_tables, {"d": one}) is not None


def test_what_is_left_to_a_later_step_does_not_grow() -> None:
    """A request grows for long while its steps are computed without these tables."""
    device_tables = tables_of()
    for count in range(1, BLOCKS + 1):
        for name in "ab":
            device_tables.take([name], [(Run(0, 7, count),)])
            assert len(device_tables._changes) <= 2
    at, slots = device_tables.take_changes()
    assert sorted(at.tolist()) == sorted({*at.tolist()}) and len(at) == 2 * BLOCKS
    assert slots.tolist() == [*range(7, 7 + BLOCKS)] * 2
