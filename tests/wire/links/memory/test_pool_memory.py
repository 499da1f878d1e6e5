"""The pool's memory: anonymous, sealed, seen read-only by peers."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from distkv.errors import ConfigError
from distkv.wire.links.memory.pool_memory import MappablePool, PeerPool, PoolMemory, PoolUnmappable, host_key


@pytest.fixture
def pool():  # type: ignore[no-untyped-def]
    with PoolMemory(64, 4) as pool:
        yield pool


def peer_pool(pool: PoolMemory, token: str | None = None, num_slots: int | None = None, **change: int) -> PeerPool:
    """The pool as a peer maps it, `change` being what the peer was told wrong."""
    mappable = msgspec.structs.replace(pool.mappable, **change)
    return PeerPool(mappable, pool.slot_bytes, num_slots or pool.num_slots, pool.token if token is None else token)


def test_it_is_zeroed_and_writable(pool: PoolMemory) -> None:
    assert pool.view == bytes(256)
    array = np.frombuffer(pool.view, dtype=np.float32)
    array[3] = 1.5
    assert pool.view[12:16] == np.float32(1.5).tobytes()


def test_peers_see_what_is_written_later(pool: PoolMemory) -> None:
    seen = peer_pool(pool)
    pool.view[64:128] = b"k" * 64
    assert seen.view[64:128] == b"k" * 64
    assert seen.view.readonly
    seen.close()
    seen.close()


def test_nobody_can_shrink_or_write_it_from_outside(pool: PoolMemory) -> None:
    fd = os.open(f"/proc/self/fd/{pool.fd}", os.O_RDWR)
    try:
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 1 << 20)
        with pytest.raises(PermissionError):
            os.write(fd, b"x")
        with pytest.raises(PermissionError):
            mmap.mmap(fd, 256)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"fd": 999}, "No such file"),
        ({"pid": 2**22 + 1}, "No such file"),
        ({"num_slots": 5}, "320 were announced"),
        ({"fd": 1}, "not the memory"),
    ],
)
def test_another_memory_is_not_mapped(pool: PoolMemory, change: dict[str, int], why: str) -> None:
    with pytest.raises(PoolUnmappable, match=why):
        peer_pool(pool, **change)


@pytest.mark.parametrize("token", ["", "distkv-pool-0"])
def test_the_token_must_match(pool: PoolMemory, token: str) -> None:
    with pytest.raises(PoolUnmappable, match="not the memory"):
        peer_pool(pool, token=token)


def test_memory_that_could_shrink_is_not_mapped() -> None:
    fd = os.memfd_create("distkv-pool-loose", os.MFD_CLOEXEC)
    os.ftruncate(fd, 64)
    try:
        with pytest.raises(PoolUnmappable, match="shrink"):
            PeerPool(MappablePool(pid=os.getpid(), fd=fd), 64, 1, "distkv-pool-loose")
    finally:
        os.close(fd)


@pytest.mark.parametrize(("slot_bytes", "num_slots"), [(0, 4), (4, 0), (2**62, 2**10), (2**40, 2**20)])
def test_impossible_sizes_are_refused(slot_bytes: int, num_slots: int) -> None:
    with pytest.raises(ConfigError, match="kv_tokens"):
        PoolMemory(slot_bytes, num_slots)


def test_views_outlive_close() -> None:
    pool = PoolMemory(64, 1)
    array = np.frombuffer(pool.view, dtype=np.uint8)
    pool.close()
    pool.close()
    array[0] = 7
    assert array[0] == 7


def test_the_host_key_is_stable() -> None:
    assert host_key() == host_key()
    assert str(os.getuid()) in host_key()


def test_views_of_slots_are_the_memory_itself(pool: PoolMemory) -> None:
    """One view for each run of neighbours."""
    with pool.writing([2, 3, 0]) as views:
        assert [view.nbytes for view in views] == [128, 64]
        views[0][:], views[1][:] = b"ab" * 64, b"c" * 64
    assert bytes(pool.view) == b"c" * 64 + bytes(64) + b"ab" * 64
    with pool.reading([1, 0]) as views:
        assert b"".join(views) == bytes(64) + b"c" * 64
    with pool.reading([]) as views:
        assert list(views) == []


def test_a_process_is_alone_on_its_host_where_the_system_does_not_say_which_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ProcSubset=pid of systemd hides the boot id: an instance ended for it."""

    def hidden(self: Path, **_: str) -> str:
        raise FileNotFoundError(self)

    monkeypatch.setattr(Path, "read_text", hidden)
    assert len({"", host_key.__wrapped__(), host_key.__wrapped__()}) == 3
