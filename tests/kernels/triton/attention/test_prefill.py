"""The prefill kernel against the float64 reference, over pools and buffers full of NaN."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from distkv.kernels import AttentionMetadata, BlockTable
from distkv.kernels.attention import reference
from tests.kernels.layers import poisoned_pool
from tests.kernels.triton.types import of_all_types

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

from distkv.kernels.triton.attention.prefill import prefill_attention
from distkv.kernels.triton.attention.prefill_tiles import HOPPER_SHARED_BYTES, Tiles, key_splits, prefill_tiles
from distkv.kernels.triton.attention.templates import Shape
from distkv.kernels.triton.metadata import device_metadata

SMALL = Tiles(16, 16, 4, 1)
"""So that a few rows and keys are many tiles."""

SLOPES = torch.tensor([0.5, 0.25, 0.125, 2.0])


class Call:
    """Entries of one pool with other slots each, and their queries at some positions."""

    def __init__(
        self,
        entries: list[tuple[BlockTable, list[int]]],
        *,
        heads: int = 4,
        kv_heads: int = 2,
        dim: int = 32,
        q_dtype: torch.dtype = torch.float32,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        self.blocks = tuple(blocks for blocks, _ in entries)
        self.positions = [torch.tensor(positions, dtype=torch.int64) for _, positions in entries]
        self.scale, block_tokens = dim**-0.5, self.blocks[0].block_tokens
        num_slots = 2 + max((slot for blocks in self.blocks for slot in blocks.slots), default=0)
        # One layer of three; what else is in the pool is NaN too.
        shape = num_slots, 3, 2, kv_heads, block_tokens, dim
        self.pool = torch.full(shape, torch.nan).to(kv_dtype or q_dtype)
        for seed, blocks in enumerate(self.blocks):
            halves = poisoned_pool(num_slots, kv_heads, block_tokens, dim, blocks, self.pool.dtype, seed)
            for slot in blocks.slots:
                self.pool[slot, 1] = torch.stack([half[slot] for half in halves])
        ends = torch.tensor([len(positions) for positions in self.positions]).cumsum(0).tolist()
        self.rows = tuple(range(end - len(some), end) for end, some in zip(ends, self.positions, strict=True))
        # As queries lie in a projection: keys and values are between them.
        numbers = torch.randn(ends[-1], heads + 2 * kv_heads, dim, generator=torch.Generator().manual_seed(0))
        self.projected, self.heads = numbers.to(q_dtype), heads

    def check(
        self,
        device: torch.device,
        tolerance: float = 2e-6,
        *,
        entries: list[int] | None = None,
        window: int | None = None,
        alibi: Tensor | None = None,
        tiles: Tiles | None = SMALL,
        splits: int | None = 1,
    ) -> None:
        """The rows of some entries, by default all, become the reference's; those of others stay as they are."""
        entries = list(range(len(self.rows))) if entries is None else entries
        q, pool = self.projected.to(device)[:, : self.heads], self.pool.to(device)
        out, lse = torch.full(q.shape, torch.nan, device=device), torch.full(q.shape[:2], torch.nan, device=device)
        prefill_attention(
            q,
            pool[:, 1, 0],
            pool[:, 1, 1],
            device_metadata(AttentionMetadata(self.rows, self.blocks, torch.cat(self.positions).to(device)), device),
            torch.tensor(entries, dtype=torch.int32, device=device),
            max(len(self.rows[entry]) for entry in entries),
            out,
            lse,
            self.scale,
            window,
            None if alibi is None else alibi.to(device),
            tiles=tiles,
            splits=splits,
        )
        wide = self.pool[:, 1, 0].float(), self.pool[:, 1, 1].float()
        for entry, (rows, blocks, positions) in enumerate(zip(self.rows, self.blocks, self.positions, strict=True)):
            got = [tensor[rows.start : rows.stop].double().cpu() for tensor in (out, lse)]
            if entry not in entries:
                assert all(tensor.isnan().all() for tensor in got)
                continue
            queries = self.projected[rows.start : rows.stop, : self.heads]
            expected = reference.micro_attention(queries, *wide, blocks, positions, self.scale, window, alibi)
            for one, other in zip(got, expected, strict=True):
                torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


def chunk(first: int, end: int, block_tokens: int = 16, first_slot: int = 0) -> tuple[BlockTable, list[int]]:
    """Keys [0, end) in shuffled slots, and queries at [first, end)."""
    count = -(-end // block_tokens)
    slots = first_slot + torch.randperm(count, generator=torch.Generator().manual_seed(end))
    starts = tuple(range(0, count * block_tokens, block_tokens))
    return BlockTable(tuple(slots.tolist()), starts, end, block_tokens), list(range(first, end))


@pytest.mark.parametrize(
    ("window", "alibi"), [(None, None), (1, None), (20, None), (1000, None), (None, SLOPES), (20, SLOPES)], ids=str
)
def test_a_chunk_of_a_prompt(device: torch.device, window: int | None, alibi: Tensor | None) -> None:
    Call([chunk(66, 85)]).check(device, window=window, alibi=alibi, tolerance=2e-6 if alibi is None else 4e-6)


@pytest.mark.parametrize("window", [None, 30])
def test_positions_in_any_order_and_blocks_with_gaps(device: torch.device, window: int | None) -> None:
    far = 1 << 36
    blocks = BlockTable((3, 0, 4, 1), tuple(far + start for start in (32, 48, 96, 128)), far + 139, 16)
    positions = [far + place for place in (138, 40, 31, 95, 96, 200, 48, 0, 120, 64, 139)]
    call = Call([(blocks, positions)])
    call.check(device, window=window)
    call.check(device, window=window, alibi=SLOPES, tolerance=4e-6)


@pytest.mark.parametrize("splits", [1, 2])
def test_only_rows_of_the_entries_asked_for_are_written(device: torch.device, splits: int) -> None:
    call = Call(
        [chunk(20, 40), chunk(3, 9, first_slot=3), (BlockTable((), (), 0, 16), [5]), chunk(0, 17, first_slot=4)]
    )
    call.check(device, entries=[3, 0, 2], splits=splits)
    call.check(device, entries=[1], splits=splits)


@pytest.mark.parametrize("window", [None, 45])
@pytest.mark.parametrize("splits", [2, 9])
def test_keys_divided_between_programs(device: torch.device, splits: int, window: int | None) -> None:
    Call([chunk(90, 96), (BlockTable((6,), (80,), 96, 16), [3, 79, 80, 90])]).check(
        device, window=window, splits=splits
    )


@of_all_types
def test_types(device: torch.device, q_dtype: torch.dtype, kv_dtype: torch.dtype, tolerance: float) -> None:
    Call([chunk(30, 37)], dim=64, q_dtype=q_dtype, kv_dtype=kv_dtype).check(device, tolerance)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "block_tokens"),
    [
        (64, 1, 32, 16),
        (71, 1, 64, 16),
        (20, 1, 80, 32),
        (1, 1, 256, 48),
        (3, 3, 96, 7),
        (10, 5, 34, 1),
        (8, 2, 128, 64),
        (2, 1, 2, 3),
    ],
)
def test_shapes(device: torch.device, heads: int, kv_heads: int, dim: int, block_tokens: int) -> None:
    shape = dict(heads=heads, kv_heads=kv_heads, dim=dim)
    Call([chunk(32, 35, block_tokens)], **shape).check(device, window=20)
    Call([chunk(32, 35, block_tokens)], q_dtype=torch.bfloat16, **shape).check(device, 5e-3, tiles=None, splits=None)


@pytest.mark.slow
@pytest.mark.parametrize("q_dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(8, 2, 128), (4, 4, 64), (14, 2, 64), (4, 1, 256)])
def test_tiles_of_long_prompts(
    device: torch.device, heads: int, kv_heads: int, dim: int, window: int | None, q_dtype: torch.dtype
) -> None:
    tolerance = 2e-6 if q_dtype == torch.float32 else 5e-3
    call = Call(
        [chunk(300, 330), chunk(0, 40, first_slot=21)], heads=heads, kv_heads=kv_heads, dim=dim, q_dtype=q_dtype
    )
    call.check(device, tolerance, window=window, tiles=None)


@given(
    block_tokens=st.integers(1, 5),
    places=st.sets(st.integers(0, 9), min_size=1),
    cut=st.integers(0, 4),
    queries=st.lists(st.integers(0, 55), min_size=1, max_size=9),
    window=st.none() | st.integers(1, 20),
    tiles=st.builds(Tiles, st.sampled_from((16, 32)), st.sampled_from((16, 32)), st.just(4), st.just(1)),
    splits=st.integers(1, 3),
)
@settings(max_examples=15, deadline=None)
def test_any_blocks_queries_and_tiles(
    device: torch.device,
    block_tokens: int,
    places: set[int],
    cut: int,
    queries: list[int],
    window: int | None,
    tiles: Tiles,
    splits: int,
) -> None:
    starts = tuple(block_tokens * place for place in sorted(places))
    num_keys = starts[-1] + block_tokens - min(cut, block_tokens - 1)
    blocks = BlockTable(tuple(range(len(starts), 0, -1)), starts, num_keys, block_tokens)
    Call([(blocks, queries)], dim=4).check(device, window=window, tiles=tiles, splits=splits)


def test_a_scale_that_is_not_positive_is_refused(device: torch.device) -> None:
    call = Call([chunk(3, 9)])
    call.scale = 0.0
    with pytest.raises(ValueError, match="expected a positive scale, got 0"):
        call.check(device)


@pytest.mark.parametrize("dim", [2, 64, 80, 128, 256])
@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("shared_bytes", [HOPPER_SHARED_BYTES, 163 << 10, 99 << 10])
def test_tiles_fit_the_device(dim: int, kv_dtype: str, shared_bytes: int) -> None:
    q_dtype = "float32" if kv_dtype == "float32" else "bfloat16"
    shape = Shape(32, 8, dim, 16, q_dtype, kv_dtype)
    for pairs in (16, 4096):
        tiles = prefill_tiles(shape, pairs, False, shared_bytes)
        number = 4 if q_dtype == "float32" else 2
        assert (tiles.rows + 2 * tiles.num_stages * tiles.keys) * dim * number <= shared_bytes


def test_keys_are_divided_only_where_programs_are_few() -> None:
    metadata = device_metadata(
        AttentionMetadata((range(9),), chunk(1000, 1024)[:1], torch.arange(9)), torch.device("cpu")
    )
    assert key_splits(programs=67, wanted=132, tile_keys=64, metadata=metadata) == 1
    assert key_splits(programs=50, wanted=132, tile_keys=64, metadata=metadata) == 2
    assert key_splits(programs=8, wanted=132, tile_keys=64, metadata=metadata) == 4
    assert key_splits(programs=8, wanted=132, tile_keys=128, metadata=metadata) == 2
    assert key_splits(programs=8, wanted=132, tile_keys=1024, metadata=metadata) == 1
