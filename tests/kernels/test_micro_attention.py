"""Backends against the float64 reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from distkv.kernels import KeyBlocks, cpu_torch, reference

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-6, torch.float16: 2e-6}
"""Backends compute in float32 from inputs the reference reads exactly, so the storage type adds no error."""


def poisoned_pool(
    num_slots: int, kv_heads: int, block_tokens: int, dim: int, blocks: KeyBlocks, dtype: torch.dtype, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """K and V in which only existing keys of `blocks` are numbers."""
    generator = torch.Generator().manual_seed(seed)
    shape = (num_slots, 3, 2, kv_heads, block_tokens, dim)  # as in the pool: one layer is a strided view
    pool = torch.full(shape, torch.nan, dtype=dtype)
    for slot, start in zip(blocks.slots, blocks.positions, strict=True):
        exist = max(0, min(block_tokens, blocks.num_keys - start))
        pool[slot, 1, :, :, :exist] = torch.randn(2, kv_heads, exist, dim, generator=generator).to(dtype)
    return pool[:, 1, 0], pool[:, 1, 1]


def check(
    q_positions: list[int],
    blocks: KeyBlocks,
    *,
    num_slots: int,
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 8,
    dtype: torch.dtype = torch.float32,
    window: int | None = None,
) -> tuple[Tensor, Tensor]:
    k, v = poisoned_pool(num_slots, kv_heads, blocks.block_tokens, dim, blocks, dtype)
    q = torch.randn(len(q_positions), heads, dim, generator=torch.Generator().manual_seed(1)).to(dtype)
    arguments = (q, k, v, blocks, torch.tensor(q_positions, dtype=torch.int64), dim**-0.5, window)
    out, lse = cpu_torch.micro_attention(*arguments)
    expected_out, expected_lse = reference.micro_attention(*arguments)
    assert out.dtype == lse.dtype == torch.float32
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(out.double(), expected_out, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(lse.double(), expected_lse, atol=tolerance, rtol=tolerance)
    return out, lse


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (6, 2), (4, 1), (1, 1)])
@pytest.mark.parametrize("dim", [2, 10, 64])
def test_head_groups_and_storage_types(dtype: torch.dtype, heads: int, kv_heads: int, dim: int) -> None:
    blocks = KeyBlocks((5, 1, 3), (0, 4, 8), 11, 4)
    for q_positions in ([10], [7, 8, 9, 10]):
        check(q_positions, blocks, num_slots=7, heads=heads, kv_heads=kv_heads, dim=dim, dtype=dtype)


@pytest.mark.parametrize("slots", [(2, 3, 4), (4, 2, 3)], ids=["one run", "scattered"])
@pytest.mark.parametrize("num_keys", [1, 4, 5, 12])
@pytest.mark.parametrize("window", [None, 1, 3, 100])
def test_one_token(slots: tuple[int, ...], num_keys: int, window: int | None) -> None:
    check([num_keys - 1], KeyBlocks(slots, (0, 4, 8), num_keys, 4), num_slots=6, window=window)


def test_keys_elsewhere_in_the_sequence() -> None:
    gaps = KeyBlocks((0, 4, 2), (4, 20, 28), 32, 4)
    check([3, 4, 22, 27, 31, 40], gaps, num_slots=5)
    check([3, 4, 22, 27, 31, 40], gaps, num_slots=5, window=9)


@pytest.mark.parametrize(
    ("q_positions", "blocks", "window"),
    [
        ([5], KeyBlocks((), (), 0, 4), None),
        ([5], KeyBlocks((1,), (0,), 0, 4), None),
        ([3, 2], KeyBlocks((1,), (4,), 8, 4), None),
        ([30, 31], KeyBlocks((1,), (4,), 8, 4), 8),
    ],
    ids=["no blocks", "no keys", "all keys later", "all keys outside the window"],
)
def test_queries_without_keys_give_the_empty_partial(
    q_positions: list[int], blocks: KeyBlocks, window: int | None
) -> None:
    out, lse = check(q_positions, blocks, num_slots=2, window=window)
    assert not out.any()
    assert torch.isneginf(lse).all()


def test_no_queries() -> None:
    out, lse = check([], KeyBlocks((0,), (0,), 4, 4), num_slots=1)
    assert out.shape == (0, 4, 8)
    assert lse.shape == (0, 4)


@given(
    block_tokens=st.integers(1, 5),
    positions=st.sets(st.integers(0, 9), min_size=1),
    cut=st.integers(0, 4),
    queries=st.lists(st.integers(0, 55), min_size=1, max_size=6),
    window=st.none() | st.integers(1, 20),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_any_blocks_and_queries(
    block_tokens: int, positions: set[int], cut: int, queries: list[int], window: int | None, seed: int
) -> None:
    starts = tuple(block_tokens * block for block in sorted(positions))
    slots = torch.randperm(12, generator=torch.Generator().manual_seed(seed))[: len(starts)].tolist()
    num_keys = starts[-1] + block_tokens - min(cut, block_tokens - 1)
    check(queries, KeyBlocks(tuple(slots), starts, num_keys, block_tokens), num_slots=12, dim=4, window=window)


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize(("key_elements", "scores"), [(64, 1 << 22), (1 << 20, 64), (64, 64)])
def test_tiles_change_nothing(
    monkeypatch: pytest.MonkeyPatch, key_elements: int, scores: int, window: int | None
) -> None:
    monkeypatch.setattr(cpu_torch, "_TILE_KEY_ELEMENTS", key_elements)
    monkeypatch.setattr(cpu_torch, "_TILE_SCORES", scores)
    blocks = KeyBlocks(tuple(range(8)), tuple(range(0, 32, 4)), 30, 4)
    check(list(range(17, 30)), blocks, num_slots=9, window=window)
    check([29], blocks, num_slots=9, window=window)


def test_runs_become_blocks_up_to_the_last_key() -> None:
    blocks = KeyBlocks.of_runs([(0, 7, 2), (5, 1, 3)], num_keys=25, block_tokens=4)
    assert blocks.slots == (7, 8, 1, 2)
    assert blocks.positions == (0, 4, 20, 24)
    assert [blocks.keys_before(position) for position in (0, 3, 8, 20, 21, 25, 99)] == [0, 3, 8, 8, 9, 13, 13]
