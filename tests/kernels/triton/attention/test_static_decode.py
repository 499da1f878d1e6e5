"""Decode whose launch does not depend on its keys, against the float64 reference: pools, buffers and the tables of
others are full of NaN or lead nowhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distkv.kernels import BlockTable, RowKv
from distkv.kernels.attention import reference
from distkv.kernels.attention.static_decode import StaticInputs
from tests.kernels.layers import poisoned_pool
from tests.kernels.triton.types import of_all_types

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

from distkv.kernels.triton.attention.decode_plan import Item, work_items
from distkv.kernels.triton.attention.static_decode import TritonStaticDecode
from distkv.kernels.triton.attention.templates import (
    SPLIT_KEYS,
    Config,
    Shape,
    heuristic,
    keys_per_item,
    merges_fused,
    most_items,
)

P, ROWS, MAX_BLOCKS = 16, 5, 12
NOWHERE = 1 << 20
ENDLESS = 2**31 - 1


class Case:
    """Up to ROWS decodes over tables of MAX_BLOCKS blocks in a pool; only blocks of `lengths` hold numbers."""

    def __init__(
        self,
        device: torch.device,
        lengths: list[int],
        *,
        heads: int = 4,
        kv_heads: int = 2,
        dim: int = 32,
        q_dtype: torch.dtype = torch.float32,
        kv_dtype: torch.dtype | None = None,
        windows: tuple[int | None, ...] = (None,),
        most_keys: int = SPLIT_KEYS,
        num_sms: int = 6,
        resident: int = 0,
        merged_elsewhere: bool = False,
    ) -> None:
        numbers = torch.Generator().manual_seed(1)
        self.device, self.scale, self.lengths = device, dim**-0.5, lengths
        counts = [-(-keys // P) for keys in lengths]
        slots = iter(torch.randperm(sum(counts) + 2, generator=numbers).tolist())
        self.blocks = [
            BlockTable([next(slots) for _ in range(count)], range(0, count * P, P), keys, P)
            for keys, count in zip(lengths, counts, strict=True)
        ]
        pools = [
            poisoned_pool(sum(counts) + 2, kv_heads, P, dim, blocks, torch.float32, seed)
            for seed, blocks in enumerate(self.blocks)
        ]
        k, v = (
            torch.stack(half).nan_to_num(-torch.inf).amax(0).masked_fill_(torch.stack(half).isnan().all(0), torch.nan)
            for half in zip(*pools, strict=True)
        )
        self.kv = RowKv(*(half.to(kv_dtype or q_dtype).to(device) for half in (k, v)))
        self.q = torch.randn(ROWS, heads, dim, generator=numbers).to(q_dtype).to(device)
        self.tables = torch.full((ROWS * MAX_BLOCKS,), NOWHERE, dtype=torch.int32)
        for row, blocks in enumerate(self.blocks):
            place = (ROWS - 1 - row) * MAX_BLOCKS
            self.tables[place : place + len(blocks)] = torch.from_numpy(blocks.slots)
        self.positions = torch.zeros(ROWS, dtype=torch.int64, device=device)
        self.attended = torch.full((ROWS, heads, dim), torch.nan, dtype=q_dtype, device=device)
        tables = self.tables.to(device)
        inputs = StaticInputs(tables, MAX_BLOCKS, self.positions, self.attended, windows, merged_elsewhere)
        shape = Shape.of(self.q, self.kv.k)
        warps = heuristic(shape).num_warps
        self.decode = TritonStaticDecode(inputs, shape, Config(16, warps, 3, 3, resident), num_sms, most_keys)

    def plan(self, keys: list[int]) -> None:
        places = np.array([(ROWS - 1 - row) * MAX_BLOCKS for row in range(len(keys))])
        self.decode.plan(places, np.zeros(len(keys), np.int64), np.array(keys))

    def check(self, keys: list[int], tolerance: float, window: int | None = None) -> None:
        """Attend with contexts that have so many keys now; rows behind them get nothing."""
        self.attended.fill_(torch.nan)
        self.positions[: len(keys)] = torch.tensor(keys) - 1
        self.decode.attend(self.q, self.kv, self.scale, window)
        for row, count in enumerate(keys):
            blocks = self.blocks[row].within(0, count)
            expected, _ = reference.micro_attention(
                self.q[row : row + 1].cpu(),
                self.kv.k.cpu().float(),
                self.kv.v.cpu().float(),
                BlockTable(blocks.slots, blocks.positions, count, P),
                torch.tensor([count - 1]),
                self.scale,
                window,
            )
            torch.testing.assert_close(self.attended[row].cpu().double(), expected[0], atol=tolerance, rtol=tolerance)
        assert self.attended[len(keys) :].isnan().all()


@pytest.mark.parametrize("most_keys", [SPLIT_KEYS, ENDLESS])
@pytest.mark.parametrize(
    ("num_sms", "resident"),
    [(1, 0), pytest.param(6, 0, marks=pytest.mark.slow), pytest.param(4, 1, marks=pytest.mark.slow), (4, 3)],
)
def test_contexts_grow_under_one_plan(device: torch.device, most_keys: int, num_sms: int, resident: int) -> None:
    """Over the ends of parts and blocks; a part that no key has reached yet is nothing. Then with fewer rows."""
    case = Case(device, [180, 150, 70, 33], most_keys=most_keys, num_sms=num_sms, resident=resident)
    case.plan([180, 150, 70, 33])
    for keys in ([1, 100, 5, 16], [64, 128, 17, 17], [65, 129, 70, 33], [180, 150, 66, 32]):
        case.check(keys, 2e-6)
    case.plan([180, 150])
    case.check([180, 150], 2e-6)


@pytest.mark.parametrize("most_keys", [SPLIT_KEYS, pytest.param(ENDLESS, marks=pytest.mark.slow)])
def test_layers_with_windows_share_a_plan(device: torch.device, most_keys: int) -> None:
    case = Case(device, [180, 150, 20], windows=(None, 100, None, 7), most_keys=most_keys)
    case.plan([180, 150, 20])
    for window in (None, 100, 7, None):
        case.check([170, 101, 20], 2e-6, window)


@pytest.mark.parametrize("most_keys", [SPLIT_KEYS, ENDLESS])
@pytest.mark.parametrize("num_sms", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_results_that_are_merged_elsewhere(device: torch.device, most_keys: int, num_sms: int) -> None:
    """Partials in float32 with their lse, whole rows and divided ones; scratch lies behind them."""
    case = Case(device, [180, 150, 3], most_keys=most_keys, num_sms=num_sms, merged_elsewhere=True)
    out, lse = case.decode.partials
    assert (out.shape, lse.shape) == ((ROWS, 4, 32), (ROWS, 4))
    out.fill_(torch.nan)
    case.plan([180, 150, 3])
    for keys in ([180, 150, 3], [17, 100, 1]):
        case.positions[: len(keys)] = torch.tensor(keys) - 1
        case.decode.attend(case.q, case.kv, case.scale, None)
        for row, count in enumerate(keys):
            blocks = case.blocks[row].within(0, count)
            expected = reference.micro_attention(
                case.q[row : row + 1].cpu(),
                case.kv.k.cpu(),
                case.kv.v.cpu(),
                BlockTable(blocks.slots, blocks.positions, count, P),
                torch.tensor([count - 1]),
                case.scale,
            )
            for found, wanted in zip((out, lse), expected, strict=True):
                torch.testing.assert_close(found[row].cpu().double(), wanted[0], atol=2e-6, rtol=2e-6)
    assert out[3:].isnan().all() and case.attended.isnan().all()


@of_all_types
def test_types(device: torch.device, q_dtype: torch.dtype, kv_dtype: torch.dtype, tolerance: float) -> None:
    """Results are rounded to the queries' type, once."""
    case = Case(device, [100, 20], dim=64, q_dtype=q_dtype, kv_dtype=kv_dtype)
    case.plan([100, 20])
    case.check([100, 19], max(tolerance, torch.finfo(q_dtype).eps if q_dtype != torch.float32 else 0))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"), [(20, 1, 80), (3, 3, 96), pytest.param(71, 1, 64, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("most_keys", [SPLIT_KEYS, ENDLESS])
def test_shapes(device: torch.device, heads: int, kv_heads: int, dim: int, most_keys: int) -> None:
    case = Case(device, [120, 3], heads=heads, kv_heads=kv_heads, dim=dim, most_keys=most_keys, num_sms=20)
    case.plan([120, 3])
    case.check([120, 3], 2e-6)


def test_a_table_may_begin_behind_the_first_position(device: torch.device) -> None:
    """As where a window has let go of what is before."""
    case = Case(device, [100])
    first = 1 << 33
    case.decode.plan(np.array([(ROWS - 1) * MAX_BLOCKS]), np.array([first]), np.array([100]))
    case.positions[0] = first + 99
    case.decode.attend(case.q, case.kv, case.scale, None)
    behind = case.attended[0].clone()
    case.plan([100])
    case.check([100], 2e-6)
    assert torch.equal(case.attended[0], behind)


@given(
    keys=st.lists(st.integers(0, 1 << 21), min_size=1, max_size=64),
    kv_heads=st.sampled_from([1, 2, 8, 32]),
    num_sms=st.sampled_from([1, 30, 132]),
    per_sm=st.sampled_from([3, 6, 12]),
    resident=st.sampled_from([0, 2, 3]),
    is_bounded=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_a_number_of_rows_has_a_largest_number_of_items(
    keys: list[int], kv_heads: int, num_sms: int, per_sm: int, resident: int, is_bounded: bool
) -> None:
    """Every key of every row is in one of them, and a program that merges has no more parts than it merges well."""
    shape = Shape(32, kv_heads, 128, 16, "bfloat16", "bfloat16")
    config = Config(64, 4, 3, per_sm, resident)
    seen = np.minimum(np.array(keys), SPLIT_KEYS) if is_bounded else np.array(keys)
    fused = merges_fused(SPLIT_KEYS if is_bounded else ENDLESS, len(keys), shape, num_sms)
    taken = keys_per_item(seen, fused, shape, config, num_sms)
    items, split_rows = work_items(np.zeros((len(keys), 7), np.int64), seen, taken, 0)
    assert len(items) <= most_items(len(keys), shape, config, num_sms)
    assert items[items[:, Item.PART] == 0, Item.NUM_PARTS].sum() == len(items)
    assert (items[:, Item.NUM_PARTS] * items[:, Item.KEYS]).max() >= seen.max()
    assert split_rows[:, 2].sum() <= len(items)
    if fused:
        assert items[:, Item.NUM_PARTS].max() <= 32
