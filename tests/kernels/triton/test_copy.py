"""rBlocks of any size arrive whole."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

from distkv.kernels.triton.copy import copy_blocks, gather_blocks, scatter_blocks

SIZES = (1, 2, 12, 24, 48, 1000, 16384, 16400, 70001)
SLOTS = (5, 0, 3, 6)


def pool_of(num_bytes: int, device: torch.device, num_slots: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(num_bytes)
    return torch.randint(0, 256, (num_slots, num_bytes), dtype=torch.uint8, generator=generator).to(device)


@pytest.mark.parametrize("num_bytes", SIZES)
def test_gathered_and_scattered(device: torch.device, num_bytes: int) -> None:
    pool, slots = pool_of(num_bytes, device), torch.tensor(SLOTS, device=device)
    staging = gather_blocks(pool, slots)
    assert torch.equal(staging, pool[slots])
    target = torch.full_like(pool, 7)
    scatter_blocks(staging, target, slots)
    expected = torch.full_like(pool, 7)
    expected[slots] = pool[slots]
    assert torch.equal(target, expected)


@pytest.mark.parametrize("shift", [0, 1, 2, 4, 8])
def test_rows_apart_and_at_any_address(device: torch.device, shift: int) -> None:
    memory = pool_of(200, device)
    pool, slots = memory[:, shift : shift + 96], torch.tensor(SLOTS, device=device)
    staging = torch.zeros(4, 160, dtype=torch.uint8, device=device)
    assert gather_blocks(pool, slots, staging[:, 32:128]).data_ptr() == staging[:, 32:].data_ptr()
    assert torch.equal(staging[:, 32:128], pool[slots])
    assert not staging[:, :32].any() and not staging[:, 128:].any()
    target = torch.zeros_like(memory)
    scatter_blocks(staging[:, 32:128], target[:, shift : shift + 96], slots)
    assert torch.equal(target[slots, shift : shift + 96], pool[slots])
    assert not target[:, :shift].any() and not target[:, shift + 96 :].any()


def test_nothing_to_copy(device: torch.device) -> None:
    pool, slots = pool_of(64, device), torch.zeros(0, dtype=torch.int64, device=device)
    assert gather_blocks(pool, slots).shape == (0, 64)


def test_staging_of_another_size_is_refused(device: torch.device) -> None:
    pool, slots = pool_of(64, device), torch.tensor(SLOTS, device=device)
    with pytest.raises(ValueError, match=r"4 rBlocks of 64 bytes need staging of shape \(4, 64\), got \(3, 64\)"):
        scatter_blocks(pool[:3], pool, slots)


@pytest.mark.parametrize("num_bytes", SIZES)
def test_copied_from_pool_to_pool(device: torch.device, num_bytes: int) -> None:
    source = pool_of(num_bytes, device)
    from_slots, slots = torch.tensor(SLOTS, device=device), torch.tensor([1, 8, 2, 0], device=device)
    target = torch.full((9, num_bytes), 7, dtype=torch.uint8, device=device)
    expected = target.clone()
    expected[slots] = source[from_slots]
    copy_blocks(source, from_slots, target, slots)
    assert torch.equal(target, expected)


@pytest.mark.parametrize("shift", [0, 1, 4, 8])
def test_pools_with_other_strides(device: torch.device, shift: int) -> None:
    source, target = pool_of(160, device)[:, 32:128], pool_of(200, device)[:, shift : shift + 96]
    slots = torch.tensor(SLOTS, device=device)
    copy_blocks(source, slots, target, slots.flip(0))
    assert torch.equal(target[slots.flip(0)], source[slots])


def test_pools_must_have_equal_blocks(device: torch.device) -> None:
    slots = torch.tensor(SLOTS, device=device)
    with pytest.raises(ValueError, match="4 rBlocks of 64 bytes for 3 of 64 bytes"):
        copy_blocks(pool_of(64, device), slots, pool_of(64, device), slots[:3])
    with pytest.raises(ValueError, match="of 64 bytes for 4 of 32 bytes"):
        copy_blocks(pool_of(64, device), slots, pool_of(32, device), slots)
