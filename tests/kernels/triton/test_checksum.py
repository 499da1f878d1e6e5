"""Checksums by the device are those of xxhash."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xxhash

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

from distkv.kernels.checksum import checksums_of, has_sums
from distkv.kernels.triton.checksum import sums_of_blocks

SLOTS = (5, 0, 3, 6)


@pytest.mark.parametrize("num_bytes", [248, 256, 264, 1016, 1024, 1032, 1088, 2040, 2048, 2056, 5000, 40_960])
def test_of_any_size(device: torch.device, num_bytes: int) -> None:
    """On both sides of whole stripes and whole blocks."""
    generator = torch.Generator().manual_seed(num_bytes)
    pool = torch.randint(0, 256, (7, num_bytes), dtype=torch.uint8, generator=generator).to(device)
    found = checksums_of(sums_of_blocks(pool, torch.tensor(SLOTS, device=device)).cpu(), num_bytes)
    assert found == [xxhash.xxh3_64_intdigest(pool[slot].cpu().numpy().tobytes()) for slot in SLOTS]


@pytest.mark.parametrize("byte", [0, 255])
def test_of_equal_bytes(device: torch.device, byte: int) -> None:
    pool = torch.full((1, 4096), byte, dtype=torch.uint8, device=device)
    found = checksums_of(sums_of_blocks(pool, torch.zeros(1, dtype=torch.int64, device=device)).cpu(), 4096)
    assert found == [xxhash.xxh3_64_intdigest(bytes([byte]) * 4096)]


def test_every_bit_counts(device: torch.device) -> None:
    """Also those of words that are counted twice: the last stripe begins inside the one before."""
    pool = torch.zeros(1, 1096, dtype=torch.uint8, device=device)
    first = torch.zeros(1, dtype=torch.int64, device=device)
    seen = {checksums_of(sums_of_blocks(pool, first).cpu(), 1096)[0]}
    places = np.random.default_rng(1).choice(1096, 40, replace=False).tolist()
    for place in [0, 1023, 1024, 1031, 1032, 1095, *places]:
        pool[0, place] ^= 1 << place % 8
        seen.add(checksums_of(sums_of_blocks(pool, first).cpu(), 1096)[0])
    assert len(seen) == 47 - len({0, 1023, 1024, 1031, 1032, 1095} & set(places))


def test_no_blocks(device: torch.device) -> None:
    pool = torch.zeros(1, 256, dtype=torch.uint8, device=device)
    assert checksums_of(sums_of_blocks(pool, torch.zeros(0, dtype=torch.int64, device=device)).cpu(), 256) == []


def test_what_has_no_such_sums() -> None:
    assert [has_sums(size) for size in (240, 241, 244, 248, 2**21)] == [False, False, False, True, True]
