"""Every backend that runs here against the float64 reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from distkv.kernels import AttentionMetadata, Backend, BlockTable
from distkv.kernels.attention import reference
from distkv.kernels.cpu import torch_backend
from tests.kernels.layers import device_of, layer_of, poisoned_pool

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def tolerance(backend: Backend, dtype: torch.dtype) -> float:
    """Backends compute in float32 from inputs the reference reads exactly, so the storage type adds no error; but GPUs,
    and CPUs with products of bfloat16 pairs, multiply values by weights of 16 bits."""
    pairs = dtype == torch.bfloat16
    rounds_weights = {"triton": dtype != torch.float32, "avx512bf16": pairs, "amx": pairs}
    return 5e-3 if rounds_weights.get(backend.name, False) else 2e-6


def check(
    backend: Backend,
    q_positions: list[int],
    blocks: BlockTable,
    *,
    num_slots: int,
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 8,
    dtype: torch.dtype = torch.float32,
    window: int | None = None,
    alibi: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    k, v = poisoned_pool(num_slots, kv_heads, blocks.block_tokens, dim, blocks, dtype)
    q = torch.randn(len(q_positions), heads, dim, generator=torch.Generator().manual_seed(1)).to(dtype)
    positions = torch.tensor(q_positions, dtype=torch.int64)
    device = device_of(backend)
    metadata = AttentionMetadata((range(len(q)),), (blocks,), positions.to(device))
    slopes = None if alibi is None else alibi.to(device)
    out, lse = backend.attend(q.to(device), layer_of(backend, k, v), metadata, dim**-0.5, window, slopes)
    expected_out, expected_lse = reference.micro_attention(q, k, v, blocks, positions, dim**-0.5, window, alibi)
    assert out.dtype == lse.dtype == torch.float32
    close = dict(atol=tolerance(backend, dtype), rtol=tolerance(backend, dtype), check_device=False)
    torch.testing.assert_close(out.double(), expected_out, **close)
    torch.testing.assert_close(lse.double(), expected_lse, **close)
    return out, lse


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (6, 2), (4, 1), (1, 1)])
@pytest.mark.parametrize("dim", [2, 10, 64])
def test_head_groups_and_storage_types(
    backend: Backend, dtype: torch.dtype, heads: int, kv_heads: int, dim: int
) -> None:
    blocks = BlockTable((5, 1, 3), (0, 4, 8), 11, 4)
    for q_positions in ([10], [7, 8, 9, 10]):
        check(backend, q_positions, blocks, num_slots=7, heads=heads, kv_heads=kv_heads, dim=dim, dtype=dtype)


@pytest.mark.parametrize("slots", [(2, 3, 4), (4, 2, 3)], ids=["one run", "scattered"])
@pytest.mark.parametrize("num_keys", [1, 4, 5, 12])
@pytest.mark.parametrize("window", [None, 1, 3, 100])
def test_one_token(backend: Backend, slots: tuple[int, ...], num_keys: int, window: int | None) -> None:
    check(backend, [num_keys - 1], BlockTable(slots, (0, 4, 8), num_keys, 4), num_slots=6, window=window)


def test_keys_elsewhere_in_the_sequence(backend: Backend) -> None:
    gaps = BlockTable((0, 4, 2), (4, 20, 28), 32, 4)
    check(backend, [3, 4, 22, 27, 31, 40], gaps, num_slots=5)
    check(backend, [3, 4, 22, 27, 31, 40], gaps, num_slots=5, window=9)


@pytest.mark.parametrize(
    ("q_positions", "blocks", "window"),
    [
        ([5], BlockTable((), (), 0, 4), None),
        ([5], BlockTable((1,), (0,), 0, 4), None),
        ([3, 2], BlockTable((1,), (4,), 8, 4), None),
        ([30, 31], BlockTable((1,), (4,), 8, 4), 8),
    ],
    ids=["no blocks", "no keys", "all keys later", "all keys outside the window"],
)
def test_queries_without_keys_give_the_empty_partial(
    backend: Backend, q_positions: list[int], blocks: BlockTable, window: int | None
) -> None:
    out, lse = check(backend, q_positions, blocks, num_slots=2, window=window)
    assert not out.any()
    assert torch.isneginf(lse).all()


def test_no_queries(backend: Backend) -> None:
    out, lse = check(backend, [], BlockTable((0,), (0,), 4, 4), num_slots=1)
    assert out.shape == (0, 4, 8)
    assert lse.shape == (0, 4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_tokens", [16, 48])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"), [(8, 2, 64), (5, 5, 32), (14, 1, 128), (40, 1, 32), (64, 1, 32), (3, 1, 256)]
)
def test_shapes_of_real_models(
    backend: Backend, dtype: torch.dtype, block_tokens: int, heads: int, kv_heads: int, dim: int
) -> None:
    shape = dict(num_slots=9, heads=heads, kv_heads=kv_heads, dim=dim, dtype=dtype)
    num_keys = 3 * block_tokens - 5
    blocks = BlockTable((7, 2, 4), tuple(range(0, 3 * block_tokens, block_tokens)), num_keys, block_tokens)
    check(backend, [num_keys - 1], blocks, **shape)
    check(backend, [num_keys - 1], blocks, window=block_tokens + 3, **shape)
    check(backend, [5, num_keys - 2, num_keys - 1], blocks, window=19, **shape)


@pytest.mark.parametrize("window", [None, 9])
def test_alibi(backend: Backend, window: int | None) -> None:
    slopes = torch.tensor([0.5, 0.25, 0.125, 2.0])
    for block_tokens, dim in ((4, 8), (16, 32)):
        starts = tuple(range(0, 3 * block_tokens, block_tokens))
        blocks = BlockTable((2, 0, 1), starts, 3 * block_tokens - 1, block_tokens)
        for q_positions in ([blocks.num_keys - 1], [3, 5, blocks.num_keys - 1]):
            check(backend, q_positions, blocks, num_slots=3, dim=dim, window=window, alibi=slopes)


def test_long_keys_are_cut_for_the_threads_and_merged(backend: Backend) -> None:
    slots = torch.randperm(300, generator=torch.Generator().manual_seed(0)).tolist()
    blocks = BlockTable(tuple(slots), tuple(range(0, 4800, 16)), 4791, 16)
    check(backend, [4790], blocks, num_slots=300, heads=2, kv_heads=1, dim=32, dtype=torch.bfloat16)
    check(backend, [4700, 4790], blocks, num_slots=300, heads=2, kv_heads=1, dim=32, dtype=torch.bfloat16)


@pytest.mark.filterwarnings("ignore:.*(invalid value|All-NaN slice) encountered")  # of Triton's interpreter
@pytest.mark.parametrize("broken", ["query", "one key", "all keys", "an infinite key", "value"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("block_tokens", "dim"), [(4, 8), (16, 32)])
def test_what_is_no_number_reaches_who_sees_it_and_nobody_else(
    backend: Backend, broken: str, dtype: torch.dtype, block_tokens: int, dim: int
) -> None:
    """Were such keys passed over, a request of broken weights would have tokens in place of an error."""
    k, v = (torch.randn(6, 2, block_tokens, dim, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    q = torch.randn(7, 4, dim, generator=torch.Generator().manual_seed(3))
    num_keys = 3 * block_tokens - 1
    starts = (0, block_tokens, 2 * block_tokens)
    tables = [BlockTable(slots, starts, num_keys, block_tokens) for slots in ((0, 1, 2), (3, 4, 5))]
    # A decode step of both, and a chunk of both behind one another.
    rows = {1: (range(1), range(1, 2)), 3: (range(3), range(3, 6))}

    def attend(num_rows: int) -> Tensor:
        positions = torch.arange(num_keys - num_rows, num_keys).repeat(2)
        device = device_of(backend)
        metadata = AttentionMetadata(rows[num_rows], tuple(tables), positions.to(device))
        halves = (half.to(dtype) for half in (k, v))
        out, lse = backend.attend(
            q[: 2 * num_rows].to(dtype).to(device), layer_of(backend, *halves), metadata, dim**-0.5, None, None
        )
        return torch.cat((out, lse[..., None]), 2).cpu()

    sound = {num_rows: attend(num_rows) for num_rows in rows}
    if broken == "one key":
        k[1, :, 1] = torch.nan
    elif broken == "all keys":
        k[:3] = torch.nan
    elif broken == "an infinite key":
        k[1, :, 1] = torch.inf * k[1, :, 1].sign()
    elif broken == "value":
        v[1, :, 1] = torch.nan
    else:
        q[0] = torch.nan
    for num_rows, expected in sound.items():
        out = attend(num_rows)
        seen = out[:1] if broken == "query" else out[:num_rows]
        # Of a value alone the weights of all keys are numbers.
        assert seen[..., :dim].isnan().all() and (seen[..., dim].isnan().all() or broken == "value")
        assert torch.equal(out[num_rows:], expected[num_rows:])


def test_sequences_of_one_call_share_rows_and_come_out_in_order(backend: Backend) -> None:
    """As a creditor is asked: two spans of one request, and another request beside it."""
    k, v = (torch.randn(6, 2, 16, 32, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    q = torch.randn(5, 4, 32, generator=torch.Generator().manual_seed(3))
    positions = torch.tensor([70, 71, 72, 95, 40])
    rows = (range(0, 3), range(0, 3), range(3, 4), range(4, 4), range(4, 5))
    blocks = tuple(
        BlockTable(slots, starts, 96, 16)
        for slots, starts in [((0, 3), (0, 16)), ((1,), (64,)), ((5, 2), (0, 48)), ((4,), (0,)), ((), ())]
    )
    device = device_of(backend)
    metadata = AttentionMetadata(rows, blocks, positions.to(device))
    out, lse = backend.attend(q.to(device), layer_of(backend, k, v), metadata, 0.2)
    parts = [
        reference.micro_attention(q[r.start : r.stop], k, v, b, positions[r.start : r.stop], 0.2)
        for r, b in zip(rows, blocks, strict=True)
    ]
    close = dict(atol=2e-6, rtol=2e-6, check_device=False)
    torch.testing.assert_close(out.double(), torch.cat([part for part, _ in parts]), **close)
    torch.testing.assert_close(lse.double(), torch.cat([part for _, part in parts]), **close)


@given(
    block_tokens=st.integers(1, 5),
    positions=st.sets(st.integers(0, 9), min_size=1),
    cut=st.integers(0, 4),
    queries=st.lists(st.integers(0, 55), min_size=1, max_size=6),
    window=st.none() | st.integers(1, 20),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_any_blocks_and_queries(
    backend: Backend,
    block_tokens: int,
    positions: set[int],
    cut: int,
    queries: list[int],
    window: int | None,
    seed: int,
) -> None:
    starts = tuple(block_tokens * block for block in sorted(positions))
    slots = torch.randperm(12, generator=torch.Generator().manual_seed(seed))[: len(starts)].tolist()
    num_keys = starts[-1] + block_tokens - min(cut, block_tokens - 1)
    check(
        backend, queries, BlockTable(tuple(slots), starts, num_keys, block_tokens), num_slots=12, dim=4, window=window
    )


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize(("key_elements", "scores"), [(64, 1 << 22), (1 << 20, 64), (64, 64)])
def test_tiles_of_the_torch_backend_change_nothing(
    monkeypatch: pytest.MonkeyPatch, key_elements: int, scores: int, window: int | None
) -> None:
    monkeypatch.setattr(torch_backend, "_TILE_KEY_ELEMENTS", key_elements)
    monkeypatch.setattr(torch_backend, "_TILE_SCORES", scores)
    backend = torch_backend.TorchBackend()
    blocks = BlockTable(tuple(range(8)), tuple(range(0, 32, 4)), 30, 4)
    check(backend, list(range(17, 30)), blocks, num_slots=9, window=window)
    check(backend, [29], blocks, num_slots=9, window=window)
