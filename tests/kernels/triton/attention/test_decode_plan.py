"""Work items cover every key of every row once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distkv.kernels import AttentionMetadata, BlockTable

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

from distkv.kernels.triton.attention.decode_plan import DecodePlan, decode_plan
from distkv.kernels.triton.attention.templates import Config, Shape, Template
from distkv.kernels.triton.metadata import DeviceMetadata, device_metadata

SHAPE = Shape(4, 2, 64, 16, "float32", "float32")
CONFIG = Config(tile_keys=16, num_warps=4, num_stages=3, programs_per_sm=3)


def metadata_of(keys: list[int], rows: list[int]) -> DeviceMetadata:
    """Entry i has keys[i] keys and rows[i] rows."""
    ends = np.cumsum(rows)
    blocks = [BlockTable(tuple(range(n)), tuple(range(0, 16 * n, 16)), k, 16) for k in keys for n in [-(-k // 16)]]
    ranges = tuple(range(end - count, end) for end, count in zip(ends.tolist(), rows, strict=True))
    return device_metadata(AttentionMetadata(ranges, tuple(blocks), torch.zeros(int(ends[-1]))), torch.device("cpu"))


def plan_of(keys: list[int], rows: list[int], window: int | None = None, num_sms: int = 4) -> DecodePlan:
    return decode_plan(metadata_of(keys, rows), np.arange(len(keys)), SHAPE, CONFIG, num_sms, window)


@given(
    entries=st.lists(st.tuples(st.integers(0, 700), st.integers(1, 3)), min_size=1, max_size=6),
    window=st.none() | st.integers(1, 400),
    num_sms=st.integers(1, 60),
)
@settings(max_examples=60, deadline=None)
def test_every_key_of_every_row_is_taken_once(entries: list[tuple[int, int]], window: int | None, num_sms: int) -> None:
    keys, rows = (list(column) for column in zip(*entries, strict=True))
    plan = plan_of(keys, rows, window, num_sms)
    seen = [min(k, window or k) for k, count in entries for _ in range(count)]
    items = plan.items.tolist()
    (per_item,) = {item[11] for item in items}
    assert plan.num_items == len(items)
    by_row = {row: sorted(item[7:9] for item in items if item[5] == row) for row in range(sum(rows))}
    scratch = set()
    for row, parts in by_row.items():
        assert parts == [[part, len(parts)] for part in range(len(parts))]
        assert (len(parts) - 1) * per_item < max(seen[row], 1) <= len(parts) * per_item
        first = {item[9] for item in items if item[5] == row}
        assert len(first) == 1
        if len(parts) > 1:
            scratch |= set(range(min(first), min(first) + len(parts)))
    # Partials lie behind the results and do not overlap.
    assert scratch == set(range(sum(rows), sum(rows) + plan.num_parts))
    split = [
        [row, next(item[9] for item in items if item[5] == row), len(p)] for row, p in by_row.items() if len(p) > 1
    ]
    assert plan.split_rows.tolist() == split
    assert [item[10] for item in items if item[8] > 1 and item[7] == 0 and item[5] == 0] in ([], [0])
    assert len(plan.counters) >= len(split) * SHAPE.programs_per_item
    assert (plan.template is Template.ONE_PASS) == (not split)


def test_long_items_go_first() -> None:
    plan = plan_of([40, 900, 5, 100], [1, 1, 2, 1], num_sms=60)
    assert plan.template is Template.SPLIT
    left = [min(item[2] - item[7] * item[11], item[11]) for item in plan.items.tolist()]
    assert left == sorted(left, reverse=True)


def test_a_window_bounds_the_work() -> None:
    assert plan_of([100_000], [1], window=32).num_items == 1
    assert plan_of([100_000], [1]).template is Template.DEEP_SPLIT


def test_only_some_entries() -> None:
    plan = decode_plan(metadata_of([30, 40, 50], [2, 9, 1]), np.array([0, 2]), SHAPE, CONFIG, 4)
    assert sorted(item[5] for item in plan.items.tolist()) == [0, 1, 11]
    assert sorted(item[6] for item in plan.items.tolist()) == [0, 1, 11]
