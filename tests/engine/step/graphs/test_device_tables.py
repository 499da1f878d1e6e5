"""Tables on the device are what the newest steps say, and only what differs is written."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distkv.engine.step.graphs.device_tables import DeviceTables
from distkv.wire.messages.common import Run
from tests.engine.harness import seq_step

BLOCKS, SLOTS = 10, 40


class Pool:
    num_slots = SLOTS


def tables_of(num_tables: int = 3) -> DeviceTables:
    return DeviceTables(Pool(), torch.device("cpu"), num_tables, BLOCKS)  # type: ignore[arg-type]


def taken(tables: DeviceTables, **locals_of: tuple[Run, ...]) -> dict[str, int | None]:
    """One step; its changes are written."""
    tables.begin_step()
    found = {name: tables.take(seq_step((), 0, 1, local, name=name)) for name, local in locals_of.items()}
    at, slots = tables.take_changes()
    tables.tensor[torch.from_numpy(at)] = torch.from_numpy(slots.astype(np.int32))
    return found


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
@settings(max_examples=150, deadline=None)
def test_they_hold_what_steps_say(steps: list[dict[str, tuple[int, list[int]]]]) -> None:
    """Five requests share three tables; one in a while is forgotten."""
    device_tables = tables_of()
    for number, step in enumerate(steps):
        found = taken(device_tables, **{name: runs_of(*one) for name, one in step.items()})
        assert len(set(found.values())) == len(step)
        for name, (first, slots) in step.items():
            place = found[name]
            assert place is not None
            row = device_tables.tensor[place * BLOCKS : place * BLOCKS + len(slots)]
            assert row.tolist() == slots
            last = np.array([first + len(slots) - 1])
            where = device_tables.blocks(np.array([place]), last)
            assert where is not None and (where[0].item(), where[1].item()) == (slots[-1], first)
            assert device_tables.blocks(np.array([place]), last + 1) is None
            assert first == 0 or device_tables.blocks(np.array([place]), np.array([first - 1])) is None
        if number % 4 == 3:
            device_tables.forget(["a"])


def test_only_what_differs_is_written() -> None:
    device_tables = tables_of()

    def changes(*local: Run) -> int:
        device_tables.begin_step()
        device_tables.take(seq_step((), 0, 1, local))
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
    for local in [(Run(0, 0, 11),), (Run(0, 0, 2), Run(3, 2, 1)), (Run(0, 39, 2),), (), (Run(0, 0, 0),)]:
        assert taken(device_tables, a=local) == {"a": None}
    found = taken(device_tables, **{name: (Run(0, 3, 1),) for name in "abcd"})
    assert [place is None for place in found.values()] == [False, False, False, True]
    assert taken(device_tables, d=(Run(0, 3, 1),))["d"] is not None


def test_what_is_left_to_a_later_step_does_not_grow() -> None:
    """A request grows for long while its steps are computed without these tables."""
    device_tables = tables_of()
    for count in range(1, BLOCKS + 1):
        for name in "ab":
            device_tables.begin_step()
            device_tables.take(seq_step((), 0, 1, (Run(0, 7, count),), name=name))
            assert len(device_tables._changes) <= 2
    at, slots = device_tables.take_changes()
    assert sorted(at.tolist()) == sorted({*at.tolist()}) and len(at) == 2 * BLOCKS
    assert slots.tolist() == [*range(7, 7 + BLOCKS)] * 2
