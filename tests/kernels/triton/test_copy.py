"""rBlocks of any size arrive whole, and their checksums see what happens to them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

from distkv.kernels.triton.copy import block_checksums, checksum_reference, gather_blocks, scatter_blocks

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
    assert block_checksums(pool, slots).shape == (0,)


def test_staging_of_another_size_is_refused(device: torch.device) -> None:
    pool, slots = pool_of(64, device), torch.tensor(SLOTS, device=device)
    with pytest.raises(ValueError, match=r"4 rBlocks of 64 bytes need staging of shape \(4, 64\), got \(3, 64\)"):
        scatter_blocks(pool[:3], pool, slots)


@pytest.mark.parametrize("num_bytes", [4, 12, 4096, 4100, 65536, 140004])
def test_checksums_are_what_the_definition_says(device: torch.device, num_bytes: int) -> None:
    pool = pool_of(num_bytes, device)
    found = block_checksums(pool, torch.tensor(SLOTS, device=device)).tolist()
    assert found == [checksum_reference(pool[slot]) for slot in SLOTS]
    assert len(set(found)) == len(SLOTS)


def test_checksums_of_parts_of_words_are_refused(device: torch.device) -> None:
    with pytest.raises(ValueError, match="a multiple of 4 bytes, got 10"):
        block_checksums(pool_of(10, device), torch.tensor([0], device=device))


@given(data=st.data(), num_words=st.integers(2, 40))
@settings(max_examples=60, deadline=None)
def test_small_damage_is_always_seen(data: st.DataObject, num_words: int) -> None:
    """By the definition, which kernels are compared with: one word, two words exchanged, any two bits."""
    block = torch.tensor(data.draw(st.lists(st.integers(0, 255), min_size=4 * num_words, max_size=4 * num_words)))
    block = block.to(torch.uint8)
    whole, words = checksum_reference(block), block.view(torch.int32)
    first, second = data.draw(st.lists(st.integers(0, num_words - 1), min_size=2, max_size=2, unique=True))

    changed = words.clone()
    changed[first] ^= data.draw(st.integers(1, (1 << 31) - 1))
    assert checksum_reference(changed.view(torch.uint8)) != whole

    changed = words.clone()
    changed[first], changed[second] = words[second], words[first]
    assert (checksum_reference(changed.view(torch.uint8)) == whole) == bool(words[first] == words[second])

    changed = block.clone()
    for byte in (4 * first, 4 * second):
        changed[byte + data.draw(st.integers(0, 3))] ^= 1 << data.draw(st.integers(0, 7))
    assert checksum_reference(changed) != whole


def test_memory_that_nothing_was_written_to_has_a_checksum_of_its_length(device: torch.device) -> None:
    sums = [block_checksums(pool_of(size, device) * 0, torch.tensor([0], device=device)).item() for size in (64, 128)]
    assert 0 not in sums and sums[0] != sums[1]
