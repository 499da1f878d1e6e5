"""Scattered copies: the native function does what one copy after the other does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from distkv.wire.links.mapped_copy import LIBRARY, CopyRuns, copy_one_by_one, native_copier
from distkv.wire.links.runs import runs_of


@pytest.fixture(params=["native", "one by one"])
def copy(request: pytest.FixtureRequest) -> CopyRuns:
    if request.param == "one by one":
        return copy_one_by_one
    native = native_copier(LIBRARY)
    if native is None:
        pytest.skip(f"{LIBRARY.name} is not built, or of older sources")
    return native


@pytest.mark.parametrize("slot_bytes", [1, 63, 64, 319, 320, 4096, 70_001])
@pytest.mark.parametrize("num_blocks", [1, 40])
@pytest.mark.parametrize("shift", [0, 1, 31])
def test_every_byte_and_no_other(copy: CopyRuns, slot_bytes: int, num_blocks: int, shift: int) -> None:
    """Up to the size from which on it goes past the caches, and beyond; at addresses that are aligned and are not."""
    rng = np.random.default_rng(slot_bytes)
    pool = rng.integers(0, 256, 64 * slot_bytes, dtype=np.uint8)
    target = np.zeros(2 * num_blocks * slot_bytes + 2 * shift + 1, dtype=np.uint8)
    slots = rng.permutation(64)[:num_blocks].tolist()
    memory = memoryview(target)[shift:]
    into = [memory[2 * i * slot_bytes : (2 * i + 1) * slot_bytes] for i in range(num_blocks)]
    expected = target.copy()
    for i, slot in enumerate(slots):
        start = shift + 2 * i * slot_bytes
        expected[start : start + slot_bytes] = pool[slot * slot_bytes : (slot + 1) * slot_bytes]
    copy(pool.ctypes.data, runs_of(slots, slot_bytes, into))
    assert np.array_equal(target, expected)


def test_of_nothing(copy: CopyRuns) -> None:
    copy(0, runs_of([], 8, []))


def test_a_library_without_it_is_not_used(tmp_path: Path) -> None:
    assert native_copier(tmp_path / "none.so") is None
    other = tmp_path / "other.so"
    other.write_bytes(b"no library")
    assert native_copier(other) is None
