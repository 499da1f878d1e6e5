"""Which blocks and keys a table names, against a list of every key that exists."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from distkv.kernels import BlockTable


def test_runs_become_blocks_up_to_the_last_key() -> None:
    table = BlockTable.from_runs([(0, 7, 2), (5, 1, 3)], num_keys=25, block_tokens=4)
    assert table.slots.tolist() == [7, 8, 1, 2]
    assert table.positions.tolist() == [0, 4, 20, 24]
    assert [table.keys_before(position) for position in (0, 3, 8, 20, 21, 25, 99)] == [0, 3, 8, 8, 9, 13, 13]


@given(
    lengths=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=5),
    num_keys=st.integers(0, 60),
    block_tokens=st.integers(1, 4),
    start=st.integers(-5, 70),
    length=st.integers(0, 40),
    tile=st.integers(1, 4),
)
@example(lengths=[(0, 1)], num_keys=2, block_tokens=2, start=1, length=0, tile=1)
def test_against_every_key(
    lengths: list[tuple[int, int]], num_keys: int, block_tokens: int, start: int, length: int, tile: int
) -> None:
    """lengths: of runs, each a gap and a number of blocks."""
    runs, block = [], 0
    for index, (gap, count) in enumerate(lengths):
        runs.append((block + gap, 100 * index, count))
        block += gap + count
    table = BlockTable.from_runs(runs, num_keys, block_tokens)
    blocks = [
        (slot + i, (first + i) * block_tokens)
        for first, slot, count in runs
        for i in range(count)
        if (first + i) * block_tokens < num_keys
    ]
    assert list(zip(table.slots.tolist(), table.positions.tolist(), strict=True)) == blocks
    keys = [position + i for _, position in blocks for i in range(block_tokens)]
    assert table.key_positions(0, len(keys)).tolist() == keys
    assert table.keys_before(start) == sum(key < start and key < num_keys for key in keys)
    seen = [(slot, at) for slot, at in blocks if at < start + length and at + block_tokens > start]
    found = table.within(start, start + length)
    assert list(zip(found.slots.tolist(), found.positions.tolist(), strict=True)) == (seen if length else [])
    pieces = list(table.tiles(tile))
    assert [slot for piece in pieces for slot in piece.slots.tolist()] == table.slots.tolist()
    assert all(0 < len(piece) <= tile for piece in pieces)
