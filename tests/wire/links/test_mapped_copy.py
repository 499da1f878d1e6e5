"""Scattered copies: the native function does what one copy after the other does."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
import xxhash

from distkv.errors import LinkClosed, MalformedMessage
from distkv.wire.links import CheckedRead, CheckingLink
from distkv.wire.links.mapped_copy import LIBRARY, CopyRuns, can_check, copy_checked, copy_one_by_one, native_copier
from distkv.wire.links.runs import places_of, runs_of
from distkv.wire.links.transports import mapped_read
from tests.wire.links.peers import DEADLINE_S, NUM_SLOTS, SLOT_BYTES, open_pair


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


checking = pytest.mark.skipif(not can_check(4096), reason="the native library is not built, or this CPU is too old")


@checking
@pytest.mark.parametrize("block_bytes", [241, 255, 256, 320, 1023, 1024, 1025, 1088, 4096, 5000, 131_072])
@pytest.mark.parametrize("shift", [0, 1, 32])
def test_checksums_on_the_way_are_those_of_xxhash(block_bytes: int, shift: int) -> None:
    rng = np.random.default_rng(block_bytes)
    pool = rng.integers(0, 256, 8 * block_bytes, dtype=np.uint8)
    target = np.zeros(8 * block_bytes + 64, dtype=np.uint8)
    start = -target.ctypes.data % 32 + shift
    slots = [3, 4, 0, 7, 1]
    into = memoryview(target)[start : start + 5 * block_bytes]
    found = copy_checked(memoryview(pool), slots, places_of([into], block_bytes).addresses, block_bytes)
    expected = [pool[slot * block_bytes : (slot + 1) * block_bytes].tobytes() for slot in slots]
    assert into == b"".join(expected)
    assert found == [xxhash.xxh3_64_intdigest(block) for block in expected]
    assert not target[:start].any() and not target[start + 5 * block_bytes :].any()


@checking
def test_blocks_whose_checksum_is_computed_otherwise_are_not_checked_on_the_way() -> None:
    assert not can_check(240) and can_check(241)


@checking
def test_a_link_that_maps_a_pool_checks_what_it_reads() -> None:
    with open_pair("shm") as pair:
        assert isinstance(pair.asking, CheckingLink)
        into = memoryview(bytearray(4 * SLOT_BYTES))
        slots = [5, 6, 2, 40]
        read = pair.asking.read_checked(slots, [into])
        assert isinstance(read, CheckedRead)
        read.wait(DEADLINE_S)
        blocks = [pair.pool.view[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES] for slot in slots]
        assert into == b"".join(blocks)
        assert list(read.checksums) == [xxhash.xxh3_64_intdigest(block) for block in blocks]
        with pytest.raises(MalformedMessage, match="outside the pool"):
            pair.asking.read_checked([NUM_SLOTS], [into[:SLOT_BYTES]])
        pair.asking.abort()
        with pytest.raises(LinkClosed):
            pair.asking.read_checked([1], [into[:SLOT_BYTES]])


@checking
def test_large_reads_are_checked_in_pieces_of_whole_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_read, "PIECE_BYTES", 3 * SLOT_BYTES + 7)
    with open_pair("shm") as pair:
        assert isinstance(pair.asking, CheckingLink)
        into = memoryview(bytearray(NUM_SLOTS * SLOT_BYTES))
        read = pair.asking.read_checked(range(NUM_SLOTS), [into])
        assert read is not None and not read.poll()
        read.wait(DEADLINE_S)
        assert into == pair.pool.view and len(read.checksums) == NUM_SLOTS


@checking
def test_a_read_that_is_dropped_in_the_middle_gives_its_destination_back_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mapped_read, "PIECE_BYTES", SLOT_BYTES)
    with open_pair("shm") as pair:
        assert isinstance(pair.asking, CheckingLink)
        memory = bytearray(2 * SLOT_BYTES)
        read = pair.asking.read_checked([0, 1], [memoryview(memory)])
        assert read is not None and not read.poll()
        with pytest.raises(BufferError):
            memory.append(0)
        gc.disable()
        try:
            del read
            memory.append(0)
        finally:
            gc.enable()
