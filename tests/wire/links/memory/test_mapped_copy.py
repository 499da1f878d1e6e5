"""Scattered copies: the native function does what one copy after the other does."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import xxhash

from distkv.errors import LinkClosed, MalformedMessage
from distkv.wire.links import CheckedRead, CheckingLink
from distkv.wire.links.memory import mapped_copy
from distkv.wire.links.memory.addressed import Addressed
from distkv.wire.links.memory.mapped_copy import can_check, checksums_of, copy_blocks, copy_checked, copy_runs
from distkv.wire.links.memory.pool_memory import PeerPool, PoolMemory
from distkv.wire.links.memory.runs import Destination, places_of, runs_of
from distkv.wire.links.native import LIBRARY, native
from distkv.wire.links.transports import mapped_read
from tests.wire.links.peers import DEADLINE_S, NUM_SLOTS, SLOT_BYTES, open_pair

Copy = Callable[[memoryview, Sequence[int], int, Destination], None]
"""Copies these slots of a pool, of so many bytes, to their destination."""


def by_runs(pool: memoryview, slots: Sequence[int], slot_bytes: int, into: Destination) -> None:
    copy_runs(Addressed(pool), runs_of(slots, slot_bytes, into))


def by_blocks(pool: memoryview, slots: Sequence[int], slot_bytes: int, into: Destination) -> None:
    copy_blocks(Addressed(pool), slots, places_of(into, slot_bytes).addresses, slot_bytes)


@pytest.fixture(params=["native", "one by one"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "one by one":
        monkeypatch.setattr(mapped_copy, "native", lambda _name: None)
    elif native("copy_blocks") is None:
        pytest.skip(f"{LIBRARY.name} is not built, or of older sources")


@pytest.fixture(params=[by_runs, by_blocks])
def copy(request: pytest.FixtureRequest, library: None) -> Copy:
    found: Copy = request.param
    return found


@pytest.mark.parametrize("slot_bytes", [1, 63, 64, 319, 320, 4096, 70_001, 163_840, 196_608, 200_704])
@pytest.mark.parametrize("num_blocks", [1, 40])
@pytest.mark.parametrize("shift", [0, 1, 31])
def test_every_byte_and_no_other(copy: Copy, slot_bytes: int, num_blocks: int, shift: int) -> None:
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
    copy(memoryview(pool), slots, slot_bytes, into)
    assert np.array_equal(target, expected)


def test_neighbours_at_one_end_or_at_both(copy: Copy) -> None:
    pool = np.arange(2**16, dtype=np.uint16).view(np.uint8)
    slots = [4, 5, 6, 9, 10, 3, 2, 7, 8]
    target = np.zeros(16 * 512, dtype=np.uint8)
    views = [memoryview(target)[first * 512 : end * 512] for first, end in ((0, 4), (5, 8), (9, 9), (10, 12))]
    copy(memoryview(pool), slots, 512, views)
    rows, places = target.reshape(16, 512), [0, 1, 2, 3, 5, 6, 7, 10, 11]
    assert np.array_equal(rows[places], pool.reshape(-1, 512)[slots])
    assert not np.delete(rows, places, axis=0).any()


@pytest.mark.parametrize("num_blocks", [35, 40, 43])
@pytest.mark.parametrize("shift", [0, 8])
def test_short_runs_that_are_copied_a_few_at_once(copy: Copy, num_blocks: int, shift: int) -> None:
    """Past the caches: blocks alone, in rows of some lengths, and alone again; at a place that others lie around."""
    slot_bytes = 32_768
    rng = np.random.default_rng(num_blocks)
    pool = rng.integers(0, 256, 64 * slot_bytes, dtype=np.uint8)
    memory = np.zeros(65 * slot_bytes + 64, dtype=np.uint8)
    start = -memory.ctypes.data % 64 + shift
    target = memory[start : start + 64 * slot_bytes]
    slots, places = rng.permutation(64)[:num_blocks], rng.permutation(64)[:num_blocks]
    for first, end in ((7, 9), (9, 14), (20, 26)):
        slots[first:end] = slots[first] // 2 + np.arange(end - first)
        places[first:end] = -1
        free = [at for at in range(64 - end + first) if not set(range(at, at + end - first)) & set(places.tolist())]
        if free:
            places[first:end] = free[0] + np.arange(end - first)
    kept = places >= 0
    slots, places = slots[kept], places[kept]
    views = [memoryview(target)[place * slot_bytes : (place + 1) * slot_bytes] for place in places.tolist()]
    copy(memoryview(pool), slots.tolist(), slot_bytes, views)
    rows = target.reshape(64, -1)
    assert np.array_equal(rows[places], pool.reshape(64, -1)[slots])
    assert not np.delete(rows, places, axis=0).any()
    assert not memory[:start].any() and not memory[start + len(target) :].any()


def test_of_nothing(copy: Copy) -> None:
    pool = bytearray(range(8))
    copy(memoryview(pool), [], 8, [])
    assert pool == bytearray(range(8))


def test_a_library_without_it_is_not_used(tmp_path: Path) -> None:
    assert native("copy_runs", tmp_path / "none.so") is None
    other = tmp_path / "other.so"
    other.write_bytes(b"no library")
    assert native("copy_runs", other) is None


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
    found = copy_checked(Addressed(memoryview(pool)), slots, places_of([into], block_bytes).addresses, block_bytes)
    expected = [pool[slot * block_bytes : (slot + 1) * block_bytes].tobytes() for slot in slots]
    assert into == b"".join(expected)
    assert found.tolist() == [xxhash.xxh3_64_intdigest(block) for block in expected]
    assert not target[:start].any() and not target[start + 5 * block_bytes :].any()


@checking
@pytest.mark.parametrize("num_blocks", [3, 4, 5, 8, 23])
@pytest.mark.parametrize("block_bytes", [1024, 4096, 4096 + 512])
@pytest.mark.parametrize("shift", [0, 8])
def test_scattered_blocks_are_checked_a_few_at_once_and_the_rest_alone(
    num_blocks: int, block_bytes: int, shift: int
) -> None:
    rng = np.random.default_rng(num_blocks)
    pool = rng.integers(0, 256, 64 * block_bytes, dtype=np.uint8)
    memory = np.zeros(65 * block_bytes + 64, dtype=np.uint8)
    start = -memory.ctypes.data % 64 + shift
    target = memory[start : start + 64 * block_bytes].reshape(64, -1)
    # Scattered, a row in the middle, and scattered again.
    slots = [*rng.permutation(30).tolist()[: num_blocks - 3], 40, 41, 42][:num_blocks]
    places = rng.permutation(64)[:num_blocks].tolist()
    to = [target.ctypes.data + place * block_bytes for place in places]
    found = copy_checked(Addressed(memoryview(pool)), slots, to, block_bytes)
    blocks = pool.reshape(64, -1)[slots]
    assert np.array_equal(target[places], blocks)
    assert not np.delete(target, places, axis=0).any()
    assert found.tolist() == [xxhash.xxh3_64_intdigest(block.tobytes()) for block in blocks]


@checking
@pytest.mark.parametrize("num_blocks", [1, 4, 23])
@pytest.mark.parametrize("block_bytes", [241, 4096, 131_072])
def test_checksums_of_what_lies_still(num_blocks: int, block_bytes: int) -> None:
    pool = np.random.default_rng(1).integers(0, 256, 32 * block_bytes, dtype=np.uint8)
    slots = [*np.random.default_rng(2).permutation(28).tolist(), 28, 29, 30, 31][-num_blocks:]
    found = checksums_of(Addressed(memoryview(pool)), slots, block_bytes)
    blocks = pool.reshape(32, -1)[slots]
    assert found is not None and found.tolist() == [xxhash.xxh3_64_intdigest(block.tobytes()) for block in blocks]


def test_there_are_none_without_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_copy, "native", lambda _name: None)
    assert checksums_of(Addressed(memoryview(bytes(512))), [0], 512) is None


@pytest.mark.parametrize("name", ["copy_runs", "copy_blocks", "copy_blocks_checked", "checksum_blocks"])
def test_what_is_unmapped_in_the_middle_of_a_copy_is_there_until_it_ends(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a thread that ends the link: a page that is not mapped any more would be the end of the process."""
    own = PoolMemory(4096, 4)
    peer = PeerPool(own.mappable, own.slot_bytes, own.num_slots, own.token)
    read: list[bytes] = []

    def unmap_and_read(address: int, *_: object) -> int:
        if address:
            peer.close()
            assert not peer._map.closed
            read.append(ctypes.string_at(address + 3 * 4096, 4096))
        return 1

    monkeypatch.setattr(mapped_copy, "native", lambda _name: unmap_and_read)
    can_check.cache_clear()
    into = memoryview(bytearray(4096))
    calls: dict[str, Callable[[], object]] = {
        "copy_runs": lambda: copy_runs(peer.memory, runs_of([3], 4096, [into])),
        "copy_blocks": lambda: copy_blocks(peer.memory, [3], places_of([into], 4096).addresses, 4096),
        "copy_blocks_checked": lambda: copy_checked(peer.memory, [3], places_of([into], 4096).addresses, 4096),
        "checksum_blocks": lambda: checksums_of(peer.memory, [3], 4096),
    }
    try:
        calls[name]()
        assert read == [bytes(4096)]
        with pytest.raises(ValueError, match="released"):
            calls[name]()
    finally:
        can_check.cache_clear()
        peer.close()
        own.close()


@checking
def test_blocks_whose_checksum_is_computed_otherwise_are_not_checked_on_the_way() -> None:
    assert not can_check(240) and can_check(241)


@checking
@pytest.mark.parametrize("transport", ["shm", "unix", "tcp"])
def test_a_link_checks_what_it_reads(transport: str) -> None:
    with open_pair(transport) as pair, pair.serving():
        assert isinstance(pair.asking, CheckingLink)
        into = memoryview(bytearray(4 * SLOT_BYTES))
        slots = [5, 6, 2, 40]
        read = pair.asking.read_checked(slots, [into])
        assert isinstance(read, CheckedRead)
        read.wait(DEADLINE_S)
        blocks = [pair.pool.view[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES] for slot in slots]
        assert into == b"".join(blocks)
        assert list(read.checksums) == [xxhash.xxh3_64_intdigest(block) for block in blocks]
        memory = np.zeros(2 * SLOT_BYTES, dtype=np.uint8)
        found = pair.asking.copy_checked([6, 40], [memory.ctypes.data, memory.ctypes.data + SLOT_BYTES])
        assert found == (read.checksums[1::2] if transport == "shm" else None)
        assert memory.tobytes() == (b"".join(blocks[1::2]) if transport == "shm" else bytes(2 * SLOT_BYTES))
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
