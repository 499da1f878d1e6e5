"""Norm, rotation and storage of a fused QKV projection in one pass, against the same in torch."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from distkv.kernels import Backend, FusedQkv
from tests.kernels.layers import device_of, layer_of

NUM_SLOTS, HEADS, KV_HEADS = 5, 4, 2


def qkv_of(num_rows: int, dim: int, dtype: torch.dtype, *, norm: bool) -> FusedQkv:
    """Rows of a wider projection: they do not follow each other."""
    generator = torch.Generator().manual_seed(num_rows)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    rows = draw(num_rows, (HEADS + 2 * KV_HEADS) * dim + 6)[:, : (HEADS + 2 * KV_HEADS) * dim]
    angle = torch.rand(num_rows, dim // 2, generator=generator).repeat(1, 2) * 6
    norms = (draw(dim), draw(dim)) if norm else (None, None)
    return FusedQkv(rows, HEADS, angle.cos().to(dtype), angle.sin().to(dtype), *norms, eps=1e-6)


def qkv_on(qkv: FusedQkv, device: torch.device) -> FusedQkv:
    moved = {name: value.to(device) for name, value in vars(qkv).items() if isinstance(value, torch.Tensor)}
    return dataclasses.replace(qkv, **moved)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("block_tokens", "dim", "num_rows"), [(16, 32, 1), (4, 10, 7), (3, 8, 5), (32, 64, 70)])
def test_queries_and_stored_tokens(
    backend: Backend, block_tokens: int, dim: int, num_rows: int, dtype: torch.dtype, norm: bool
) -> None:
    qkv = qkv_of(num_rows, dim, dtype, norm=norm)
    empty = torch.full((NUM_SLOTS, KV_HEADS, block_tokens, dim), torch.nan, dtype=dtype)
    kv = layer_of(backend, empty, empty)
    places = torch.randperm(NUM_SLOTS * block_tokens, generator=torch.Generator().manual_seed(0))[:num_rows]
    slots, offsets = places // block_tokens, places % block_tokens
    device = device_of(backend)
    q = backend.store(qkv_on(qkv, device), kv, slots.to(device), offsets.to(device))
    wanted_q, wanted_k, wanted_v = qkv.rotated()
    # A norm's sum in another order moves its result by a unit in the last place; all else is the same arithmetic.
    close = dict(rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps) if norm else dict(rtol=0, atol=0)
    if dtype == torch.float32:
        close = dict(rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(q.cpu(), wanted_q, **close)
    keys, values = kv.keys(slice(None)).cpu(), kv.values(slice(None)).cpu()
    torch.testing.assert_close(keys[slots, :, offsets], wanted_k, **close)
    assert torch.equal(values[slots, :, offsets], wanted_v)
    untouched = torch.ones(NUM_SLOTS, block_tokens, dtype=torch.bool)
    untouched[slots, offsets] = False
    assert keys.transpose(1, 2)[untouched].isnan().all()
    assert values.transpose(1, 2)[untouched].isnan().all()
