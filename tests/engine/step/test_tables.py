"""Block tables that are kept from step to step: they are those that would be made anew."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distkv.engine.step.tables import BlockTables
from distkv.errors import MalformedMessage
from distkv.kernels import BlockTable
from distkv.wire.messages.common import Run
from tests.engine.harness import seq_step

TOKENS, SLOTS = 4, 64
POOL: Any = SimpleNamespace(block_tokens=TOKENS, num_slots=SLOTS)


def made(local: tuple[Run, ...], end: int) -> BlockTable:
    return BlockTable.from_runs([(run.first_block, run.first_slot, run.num_blocks) for run in local], end, TOKENS)


def seen(table: BlockTable) -> tuple[Any, ...]:
    return table.slots.tolist(), table.positions.tolist(), table.num_keys, table.num_existing, table.ends


@st.composite
def runs(draw: st.DrawFn) -> tuple[Run, ...]:
    """Ascending, with gaps where blocks lie elsewhere."""
    found, block = [], 0
    for _ in range(draw(st.integers(0, 4))):
        block += draw(st.integers(0, 3))
        count = draw(st.integers(1, 4))
        found.append(Run(block, draw(st.integers(0, SLOTS - count)), count))
        block += count
    return tuple(found)


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(1, 40), st.booleans()), max_size=30),
    st.data(),
)
def test_they_follow_every_step(history: list[tuple[str, int, int, bool]], data: st.DataObject) -> None:
    """Decodes, chunks, attempts that begin again, blocks that leave and come back, requests of the same name."""
    kept = BlockTables(POOL)
    places = [data.draw(runs()) for _ in range(4)]
    for name, place, end, is_forgotten in history:
        step = seq_step((), end - 1, end, places[place], name=name)
        before = seen(kept.of(step))
        assert before == seen(made(places[place], end))
        if is_forgotten:
            kept.forget([name, "never there"])


def test_an_earlier_table_stays_as_it_was() -> None:
    kept, local = BlockTables(POOL), (Run(0, 5, 4),)
    first = kept.of(seq_step((), 8, 9, local))
    second = kept.of(seq_step((), 9, 10, local))
    assert (first.num_keys, second.num_keys) == (9, 10) and first.slots is second.slots


def test_blocks_outside_of_the_pool_are_refused() -> None:
    with pytest.raises(MalformedMessage, match="leaves a pool of 64 slots"):
        BlockTables(POOL).of(seq_step((), 0, 1, (Run(0, SLOTS, 1),)))
