"""Attention metadata as kernels read it, against the block tables it was made of."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distkv.kernels import AttentionMetadata, BlockTable

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

import triton
import triton.language as tl

from distkv.kernels.triton.metadata import Column, device_metadata, keys_before

GAPS = BlockTable((4, 0, 7), (8, 12, 32), 34, 4)
WHOLE = BlockTable((9, 2), (1 << 40, (1 << 40) + 4), (1 << 40) + 7, 4)
NONE = BlockTable((), (), 0, 4)


def metadata_of(*blocks: BlockTable) -> AttentionMetadata:
    return AttentionMetadata(
        tuple(range(i, i + 2) for i in range(len(blocks))), blocks, torch.zeros(9, dtype=torch.int64)
    )


def test_entries_follow_each_other_in_one_copy(device: torch.device) -> None:
    there = device_metadata(metadata_of(GAPS, NONE, WHOLE), device)
    assert there.slots.tolist() == [4, 0, 7, 9, 2]
    assert there.starts.tolist() == [0, 4, 24, 0, 4]
    assert there.entries.tolist() == there.host.tolist()
    columns = {column.name: there.host[:, column].tolist() for column in Column}
    assert columns == {
        "FIRST_BLOCK": [0, 3, 3],
        "NUM_BLOCKS": [3, 0, 2],
        "NUM_KEYS": [10, 0, 7],
        "FIRST_ROW": [0, 1, 2],
        "NUM_ROWS": [2, 2, 2],
        "OUT_ROW": [0, 2, 4],
        "FIRST_POSITION": [8, 0, 1 << 40],
        "GAPS": [16, 0, 0],
    }
    assert there.num_out_rows == 6
    assert there.block_tokens == 4
    assert there.slots.device == there.entries.device == there.positions.device


def test_layers_share_what_the_first_made(device: torch.device) -> None:
    metadata = metadata_of(GAPS)
    assert device_metadata(metadata, device) is device_metadata(metadata, device)


@triton.jit
def _ask(starts, positions, answers, num_blocks, num_keys, gaps, P: tl.constexpr):  # type: ignore[no-untyped-def]
    asked = tl.program_id(0)
    answer = keys_before(starts, num_blocks, num_keys, gaps, tl.load(positions + asked), P)
    tl.store(answers + asked, answer)


@given(
    places=st.sets(st.integers(0, 12), min_size=1),
    block_tokens=st.integers(1, 5),
    cut=st.integers(0, 4),
    asked=st.lists(st.integers(-3, 70), min_size=1, max_size=6),
)
@settings(max_examples=15, deadline=None)
def test_keys_before_a_position(
    device: torch.device, places: set[int], block_tokens: int, cut: int, asked: list[int]
) -> None:
    starts = tuple(place * block_tokens for place in sorted(places))
    num_keys = starts[-1] + block_tokens - min(cut, block_tokens - 1)
    blocks = BlockTable(tuple(range(len(starts))), starts, num_keys, block_tokens)
    there = device_metadata(metadata_of(blocks), device)
    answers = torch.full((len(asked),), -1, dtype=torch.int32, device=device)
    entry = there.host[0].tolist()
    numbers = [entry[column] for column in (Column.NUM_BLOCKS, Column.NUM_KEYS, Column.GAPS)]
    _ask[len(asked),](there.starts, torch.tensor(asked, device=device) - starts[0], answers, *numbers, P=block_tokens)
    assert answers.tolist() == [blocks.keys_before(position) for position in asked]
