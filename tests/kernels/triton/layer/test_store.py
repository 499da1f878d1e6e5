"""What the test of all backends leaves out: float8 pools, other types than the model's, strides, sizes."""

from __future__ import annotations

import pytest
import torch

from distkv.kernels import FusedQkv, RowKv

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

from distkv.kernels.triton.layer.store import store_qkv

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
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 32,
    block_tokens: int = 4,
    dtype: torch.dtype = torch.bfloat16,
    kv_dtype: torch.dtype | None = None,
    norm: bool = False,
    factors: tuple[float, ...] = (1.0, 1.0),
) -> None:
    """The same as `FusedQkv.rotated` and `RowKv.write`, number by number, and nothing else is written."""
    num_rows, width = len(factors), (heads + 2 * kv_heads) * dim
    rows = draw(num_rows, width + 8, dtype=dtype, device=device)
    rows = rows.mul_(torch.tensor(factors, device=device)[:, None])[:, :width]
    angles = draw(num_rows, dim, dtype=dtype, device=device, seed=1)
    gains = [draw(dim, dtype=dtype, device=device, seed=seed) for seed in (2, 3)] if norm else (None, None)
    # The rows of cos and sin lie side by side, as if they were cut from one table.
    cos, sin = torch.cat((angles.cos(), angles.sin()), 1).split(dim, 1)
    some = FusedQkv(rows, heads, cos, sin, *gains, eps=1e-6)
    kv, wanted = (pool_of(kv_heads, block_tokens, dim, kv_dtype or dtype, device) for _ in range(2))
    places = torch.randperm(NUM_SLOTS * block_tokens, generator=torch.Generator().manual_seed(4))[:num_rows].to(device)
    slots, offsets = places // block_tokens, places % block_tokens
    q = store_qkv(some, kv, slots, offsets)
    wanted_q, k, v = some.rotated()
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
def test_float8_pools_hold_the_nearest_finite_numbers(device: torch.device, dtype: torch.dtype, norm: bool) -> None:
    check(device, dtype=dtype, kv_dtype=torch.float8_e4m3fn, norm=norm, factors=(1e-3, 1.0, 300.0))


@pytest.mark.parametrize(
    ("dtype", "kv_dtype"),
    [(torch.bfloat16, torch.float16), (torch.float32, torch.bfloat16), (torch.float16, torch.float32)],
    ids=str,
)
def test_pools_of_another_type(device: torch.device, dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    check(device, dtype=dtype, kv_dtype=kv_dtype)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "block_tokens", "norm"),
    [(1, 1, 2, 1, True), (71, 1, 64, 16, False), (7, 7, 80, 3, True), (5, 1, 256, 16, True), (33, 17, 34, 5, False)],
)
def test_shapes(device: torch.device, heads: int, kv_heads: int, dim: int, block_tokens: int, norm: bool) -> None:
    check(device, heads=heads, kv_heads=kv_heads, dim=dim, block_tokens=block_tokens, norm=norm)


def test_tokens_without_a_slot_are_stored_nowhere(device: torch.device) -> None:
    numbers = draw(3, 8 * 32, dtype=torch.float32, device=device)
    angles = torch.ones(3, 32, device=device)
    kv = pool_of(2, 4, 32, torch.float32, device)
    slots, offsets = torch.tensor([-1, 2, -1], device=device), torch.tensor([0, 3, 1], device=device)
    q = store_qkv(FusedQkv(numbers, 4, angles, angles), kv, slots, offsets)
    torch.testing.assert_close(q, FusedQkv(numbers, 4, angles, angles).rotated()[0])
    written = (kv.k != 96) | (kv.v != 96)
    assert written[2, :, 3].all() and written.sum() == 2 * 32


def test_no_rows(device: torch.device) -> None:
    angles = torch.zeros(0, 32, device=device)
    some = FusedQkv(torch.zeros(0, 8 * 32, device=device), 4, angles, angles)
    none = torch.zeros(0, dtype=torch.int64, device=device)
    assert store_qkv(some, pool_of(2, 4, 32, torch.float32, device), none, none).shape == (0, 4, 32)
