"""The memory of a worker's KV pool, and the sight peers on the same host have of it.

The pool is an anonymous memory file: no name in any file system, gone with the last process that holds it, also after
SIGKILL. It is sealed, so that it can neither shrink under a reader nor be mapped writable by anybody else (KVDirect §4:
nobody writes into another's pool).
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Literal, Protocol, Self

from distkv.errors import ConfigError, DistKVError
from distkv.wire.links.memory.addressed import Addressed
from distkv.wire.links.memory.slot_numbers import bounds_of
from distkv.wire.links.memory.slot_views import SlotViews
from distkv.wire.messages.common import Value

_NAME_PREFIX = "distkv-pool-"
# Linux 5.1: existing writable mappings stay, new ones are refused. Not yet a constant in Python.
_F_SEAL_FUTURE_WRITE = 0x10


class MappablePool(Value, frozen=True):
    """Metadata of transport "shm": the process and the descriptor in it that hold the pool's memory. Peers map it
    read-only, through /proc."""

    pid: int
    fd: int


class PoolRegion(Value, frozen=True):
    """Where memory lies: bytes [address, address + num_bytes) of this process, or of a GPU. device: its number."""

    address: int
    num_bytes: int
    memory: Literal["host", "cuda"] = "host"
    device: int = 0


class PoolUnmappable(DistKVError):
    """A peer's pool cannot be mapped here; `why` says what is in the way."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the peer's pool cannot be mapped: {why}")
        self.why = why


Part = tuple[int, int]
"""Which bytes of every slot: the first one, and how many."""


class PoolShape(Protocol):
    """`num_slots` rBlocks of `slot_bytes` each."""

    @property
    def slot_bytes(self) -> int: ...

    @property
    def num_slots(self) -> int: ...


class Pool(Protocol):
    """A worker's rBlocks as bytes, wherever they lie: what its transfers write and its peers read.

    batch_slots: as many as are read or written at once with profit. mappable: where peers on this host find memory that
    they can map, token: its random name; None and empty if there is none.
    """

    @property
    def slot_bytes(self) -> int: ...

    @property
    def num_slots(self) -> int: ...

    @property
    def batch_slots(self) -> int: ...

    @property
    def token(self) -> str: ...

    @property
    def mappable(self) -> MappablePool | None: ...

    @property
    def region(self) -> PoolRegion:
        """All of it, back to back; stays there until the pool is closed."""

    def reading(self, slots: Sequence[int], part: Part | None = None) -> AbstractContextManager[Sequence[memoryview]]:
        """The bytes of these slots, or that part of each, in order, in views of whole slots or parts; good until the
        block is left."""

    def writing(self, slots: Sequence[int]) -> AbstractContextManager[Sequence[memoryview]]:
        """Views to fill with the bytes of these slots, likewise; they are in the pool when the block was left without
        an error, and undefined otherwise."""


class ChecksummingPool(Protocol):
    """A Pool whose device may compute checksums where the blocks lie."""

    @property
    def has_checksums(self) -> bool:
        """Whether it does, of blocks of this size."""

    def checksums(self, slots: Sequence[int]) -> list[int]:
        """If so: xxh3 of each of these slots."""


@cache
def host_key() -> str:
    """Equal for two processes that can map each other's memory: same boot, process namespace and user. Where that
    cannot be told, of this process alone. Read once: later there may be no descriptor for it."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot_id}/{Path('/proc/self/ns/pid').stat().st_ino}/{os.getuid()}"
    except OSError:
        return secrets.token_hex(16)


class PoolMemory:
    """The pool of this process, zeroed. view, memory: all of it, writable. token: its random name."""

    def __init__(self, slot_bytes: int, num_slots: int) -> None:
        """Create it; the pages are taken from the system when they are first written.

        Raises ConfigError when the system does not give that much.
        """
        if slot_bytes < 1 or num_slots < 1:
            raise ConfigError("kv_tokens", f"a pool of {num_slots} rBlocks of {slot_bytes} bytes holds nothing")
        self.slot_bytes, self.num_slots = slot_bytes, num_slots
        self.token = _NAME_PREFIX + secrets.token_hex(16)
        self.fd = os.memfd_create(self.token, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, self.size_bytes)
            self._map = mmap.mmap(self.fd, self.size_bytes, mmap.MAP_SHARED)
        except (OSError, OverflowError) as e:
            os.close(self.fd)
            raise ConfigError("kv_tokens", f"no memory for a pool of {self.size_bytes} bytes: {e}") from None
        _seal(self.fd)
        with contextlib.suppress(OSError):
            # Taken where the system gives huge pages to shared memory that asks for them; else nothing happens.
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.view = memoryview(self._map)
        self.memory = Addressed(self.view)

    @property
    def size_bytes(self) -> int:
        return self.slot_bytes * self.num_slots

    @property
    def batch_slots(self) -> int:
        """See Pool."""
        return self.num_slots

    @contextlib.contextmanager
    def reading(self, slots: Sequence[int], part: Part | None = None) -> Iterator[Sequence[memoryview]]:
        """See Pool: the memory itself, a view for each run of neighbouring slots, so that a run is one copy."""
        if part is None:
            yield SlotViews(self.view, self.slot_bytes, slots)
            return
        first_byte, num_bytes = part
        starts = [slot * self.slot_bytes + first_byte for slot in slots]
        yield [self.view[start : start + num_bytes] for start in starts]

    writing = reading

    @property
    def mappable(self) -> MappablePool:
        """See Pool."""
        return MappablePool(pid=os.getpid(), fd=self.fd)

    @property
    def region(self) -> PoolRegion:
        """See Pool."""
        return PoolRegion(address=self.memory.address, num_bytes=self.size_bytes)

    def close(self) -> None:
        """Give the memory back; views and tensors over it that still exist keep it alive until they are gone.

        Only when no link serves from it any more.
        """
        if self.fd < 0:
            return
        os.close(self.fd)
        self.fd = -1
        _unmap(self.view, self._map)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PeerPool:
    """The pool of a peer on this host, mapped read-only. It may outlive the peer: only the link shows that."""

    def __init__(self, pool: MappablePool, slot_bytes: int, num_slots: int, token: str) -> None:
        """Map it and check that it is the one called `token`. Raises PoolUnmappable."""
        self.slot_bytes, self.num_slots = slot_bytes, num_slots
        size_bytes = self.slot_bytes * self.num_slots
        self._map = map_peer(pool.pid, pool.fd, size_bytes, token, mmap.PROT_READ)
        self.view = memoryview(self._map)
        self.memory = Addressed(self.view)

    def close(self) -> None:
        """Unmap; more than once is fine."""
        _unmap(self.view, self._map)


def map_peer(pid: int, descriptor: int, size_bytes: int, token: str, access: int) -> mmap.mmap:
    """Map the memory file called `token` that another process of this host and user holds. access: mmap's PROT_ flags.

    Raises PoolUnmappable where it is another one, has another size, or could shrink under who reads it.
    """
    mode = os.O_RDWR if access & mmap.PROT_WRITE else os.O_RDONLY
    try:
        fd = os.open(f"/proc/{pid}/fd/{descriptor}", mode | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as e:
        raise PoolUnmappable(f"process {pid}, descriptor {descriptor}: {e.strerror}") from None
    try:
        _check(fd, size_bytes, token)
        return mmap.mmap(fd, size_bytes, mmap.MAP_SHARED, access)
    except OSError as e:
        raise PoolUnmappable(str(e)) from None
    finally:
        os.close(fd)


def _check(fd: int, size_bytes: int, token: str) -> None:
    status = os.fstat(fd)
    name = str(Path(f"/proc/self/fd/{fd}").readlink())
    if not token or name.removesuffix(" (deleted)") != f"/memfd:{token}":
        raise PoolUnmappable(f"the descriptor holds {name!r}, not the memory that was announced")
    if not stat.S_ISREG(status.st_mode) or status.st_size != size_bytes or size_bytes == 0:
        raise PoolUnmappable(f"it has {status.st_size} bytes, {size_bytes} were announced")
    if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise PoolUnmappable("it could shrink while it is read")


def slots_problem(slots: Sequence[int], num_slots: int) -> str:
    """What is wrong with these slot numbers of a pool of `num_slots`, or ""."""
    if not slots:
        return ""
    low, high = bounds_of(slots)
    if 0 <= low <= high < num_slots:
        return ""
    for slot in slots:
        if not 0 <= slot < num_slots:
            return f"slot {slot} is outside the pool of {num_slots} slots"
    return ""


def part_problem(part: Part, slot_bytes: int) -> str:
    """What is wrong with this part of slots of `slot_bytes`, or ""."""
    first, end = part[0], sum(part)
    return "" if 0 <= first < end <= slot_bytes else f"bytes [{first}, {end}) of a slot of {slot_bytes} bytes"


def _seal(fd: int) -> None:
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _F_SEAL_FUTURE_WRITE)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals | fcntl.F_SEAL_SEAL)


def _unmap(view: memoryview, memory: mmap.mmap) -> None:
    # Someone may still look at it; then the last of those views unmaps it.
    with contextlib.suppress(BufferError):
        view.release()
        memory.close()
