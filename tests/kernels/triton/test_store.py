"""What the store kernel adds to the test of all backends: float8 pools, other types than the model's, strides, sizes."""

from __future__ import annotations

import pytest
import torch

from distkv.kernels import Heads, RowKv

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

from distkv.kernels.triton.store import store_heads

NUM_SLOTS = 6


def draw(*shape: int, dtype: torch.dtype, device: torch.device, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def pool_of(kv_heads: int, block_tokens: int, dim: int, dtype: torch.dtype, device: torch.device) -> RowKv:
    """One layer of three, full of a number that no test writes."""
    memory = torch.full((NUM_SLOTS, 3, 2, kv_heads, block_tokens * dim), 96.0, device=device).to(dtype)
    return RowKv.of(memory[:, 1, 0], memory[:, 1, 1], dim, block_tokens)


def check(
    device: torch.device,
    *,
    num_rows: int = 5,
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 32,
    block_tokens: int = 4,
    dtype: torch.dtype = torch.bfloat16,
    kv_dtype: torch.dtype | None = None,
    norm: bool = False,
    factor: float = 1.0,
) -> None:
    """The same as `Heads.finished` and `RowKv.write`, number by number, and nothing else is written."""
    width = (heads + 2 * kv_heads) * dim
    rows = draw(num_rows, width + 8, dtype=dtype, device=device)[:, :width] * factor
    angles = draw(num_rows, dim, dtype=dtype, device=device, seed=1)
    gains = [draw(dim, dtype=dtype, device=device, seed=seed) for seed in (2, 3)] if norm else (None, None)
    # The rows of cos and sin lie side by side, as if they were cut from one table.
    cos, sin = torch.cat((angles.cos(), angles.sin()), 1).split(dim, 1)
    some = Heads(rows, heads, cos, sin, *gains, eps=1e-6)
    kv, wanted = (pool_of(kv_heads, block_tokens, dim, kv_dtype or dtype, device) for _ in range(2))
    places = torch.randperm(NUM_SLOTS * block_tokens, generator=torch.Generator().manual_seed(4))[:num_rows].to(device)
    slots, offsets = places // block_tokens, places % block_tokens
    q = store_heads(some, kv, slots, offsets)
    wanted_q, k, v = some.finished()
    wanted.write(slots, offsets, k, v)
    # A norm's sum in another order moves a number by a unit or two in the last place.
    for got, expected in ((q, wanted_q), (kv.k, wanted.k), (kv.v, wanted.v)):
        ulp = max(torch.finfo(dtype).eps, torch.finfo(got.dtype).eps)
        close = dict(rtol=4 * ulp, atol=4 * ulp) if norm else dict(rtol=0, atol=0)
        torch.testing.assert_close(got.float(), expected.float(), **close)
        if norm and dtype != torch.float32:
            assert (got.float() != expected.float()).float().mean() <= 0.02


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("factor", [1.0, 1e-3, 300.0])
def test_float8_pools_hold_the_nearest_finite_numbers(
    device: torch.device, dtype: torch.dtype, norm: bool, factor: float
) -> None:
    check(device, dtype=dtype, kv_dtype=torch.float8_e4m3fn, norm=norm, factor=factor)


@pytest.mark.parametrize(
    ("dtype", "kv_dtype"),
    [(torch.bfloat16, torch.float16), (torch.float32, torch.bfloat16), (torch.float16, torch.float32)],
    ids=str,
)
def test_pools_of_another_type(device: torch.device, dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    check(device, dtype=dtype, kv_dtype=kv_dtype)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "block_tokens"),
    [(1, 1, 2, 1), (71, 1, 64, 16), (7, 7, 80, 3), (5, 1, 256, 16), (33, 17, 34, 5)],
)
def test_shapes(device: torch.device, heads: int, kv_heads: int, dim: int, block_tokens: int, norm: bool) -> None:
    check(device, heads=heads, kv_heads=kv_heads, dim=dim, block_tokens=block_tokens, norm=norm)


def test_no_rows(device: torch.device) -> None:
    check(device, num_rows=0)
