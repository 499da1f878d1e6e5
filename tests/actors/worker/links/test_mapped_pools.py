"""Pools of GPUs that workers of a host map: on a GPU with its driver, else with one that has CUDA's interface."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import msgspec
import pytest
import torch
import xxhash
from structlog.testing import capture_logs

from distkv.actors.worker.device_pool import DevicePool
from distkv.actors.worker.links import mapped_pools
from distkv.actors.worker.links.mapped_pools import GivenMemory, MappedPools, mapped_pools_of
from distkv.actors.worker.pulls import source_threads
from distkv.checksums import pack
from distkv.engine.device.cpu import CpuDevice
from distkv.engine.device.cuda import CudaDevice
from distkv.engine.device.device import Device
from distkv.errors import ConfigError, LinkClosed, MalformedMessage
from distkv.wire.links import PlacingLink, PoolMemory, TensorLink, connect, hello_to
from distkv.wire.links.memory.pool_memory import PoolUnmappable
from distkv.wire.links.streams.descriptors import DescriptorIntake
from distkv.wire.messages.common import DataEndpoint
from distkv.wire.messages.data import Attach
from distkv.wire.messages.from_worker import Checksummed, Pulled
from distkv.wire.messages.to_worker import Checksum, Pull
from tests.actors.links import DEADLINE_S, close_links, identity, peer_links, transferred
from tests.actors.worker.links.mapped_sources import Source
from tests.engine.device import fake_cuda
from tests.waiting import wait_until
from tests.wire.links.device_pools import SharedPool, on_host

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

from distkv.kernels.triton.backend import TritonBackend

HAS_GPU = torch.cuda.is_available()
pytestmark = [pytest.mark.gpu] if HAS_GPU else []
on_host_only = pytest.mark.skipif(HAS_GPU, reason="faults of the driver are those of the one for tests")

SLOT_BYTES, NUM_SLOTS = 4096, 9


def make_device(gpu: int = 0) -> Device:
    """On the first GPU or the second one, where there are two."""
    return CudaDevice(gpu % torch.cuda.device_count()) if HAS_GPU else on_host(CpuDevice(TritonBackend()), gpu)


@contextlib.contextmanager
def made(gpu: int = 0, slot_bytes: int = SLOT_BYTES) -> Iterator[SharedPool]:
    """A pool, and all it takes given back. Slot i is full of the byte i + 1, but for its end."""
    living = None if HAS_GPU else fake_cuda.living()
    with contextlib.closing(SharedPool(slot_bytes, NUM_SLOTS, make_device(gpu))) as pool:
        with pool.writing(range(NUM_SLOTS)) as (view,):
            for number in range(NUM_SLOTS):
                view[number * slot_bytes : (number + 1) * slot_bytes] = bytes([number + 1]) * (slot_bytes - 1) + b"e"
        yield pool
    assert HAS_GPU or fake_cuda.living() == living


@pytest.fixture
def source() -> Iterator[SharedPool]:
    with made() as pool:
        yield pool


@pytest.fixture
def own() -> Iterator[SharedPool]:
    """On the other GPU."""
    with made(gpu=1) as pool:
        yield pool


@pytest.fixture
def mapped(own: SharedPool) -> Iterator[MappedPools]:
    with contextlib.closing(own.registered()) as registered:
        yield registered


@pytest.fixture
def served(source: SharedPool) -> Iterator[Source]:
    served = Source(source)
    thread = threading.Thread(target=served.serve)
    thread.start()
    yield served
    served.close()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def connected(served: Source, mapped: MappedPools, transport: str = "auto") -> TensorLink:
    hello = hello_to(identity("reader"), "source", 1)
    registered = {MappedPools.name: mapped}
    return connect(served.listener.endpoint, hello, DEADLINE_S, transport, registered)  # type: ignore[arg-type]


def slots_of(pool: DevicePool) -> list[bytes]:
    return [bytes(row.numpy()) for row in pool.rows.cpu()]


def test_blocks_go_from_pool_to_pool(served: Source, own: SharedPool, mapped: MappedPools) -> None:
    """Scattered, in more than one piece of the read, and no slot besides."""
    with capture_logs() as logs:
        link = connected(served, mapped)
    assert link.transport == "cuda_ipc" and isinstance(link, PlacingLink)
    (chosen,) = [line for line in logs if line["event"] == "a transport was chosen"]
    assert list(chosen["not_used"]) == ["inproc", "shm"]
    source, before = slots_of(served.pool), slots_of(own)
    read = link.read_into_pool([8, 0, 3], [2, 7, 1])
    assert read is not None
    assert slots_of(own) == before, "nothing before somebody waits"
    read.wait(DEADLINE_S)
    expected = [*before]
    expected[2], expected[7], expected[1] = source[8], source[0], source[3]
    assert slots_of(own) == expected
    nothing = link.read_into_pool([], [])
    assert nothing is not None and nothing.poll()
    for slots, own_slots in (([9], [0]), ([0], [9])):
        with pytest.raises(MalformedMessage, match="slot 9 is outside the pool of 9 slots"):
            link.read_into_pool(slots, own_slots)
    link.close()
    assert served.reads == 0


def test_the_newest_bytes_are_read(served: Source, own: SharedPool, mapped: MappedPools) -> None:
    link = connected(served, mapped)
    into = bytearray(SLOT_BYTES)
    for value in (b"1", b"2"):
        with served.pool.writing((4,)) as (view,):
            view[:] = value * SLOT_BYTES
        link.read([4], [memoryview(into)], DEADLINE_S)
        assert into == value * SLOT_BYTES
    link.abort()


@pytest.mark.parametrize("slot_bytes", [SLOT_BYTES, 100], ids=["checked by the device", "checked by the host"])
async def test_pulls_are_verified(slot_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_threads, "IDLE_S", 0.01)
    source_slots, slots = (4, 5, 6, 1, 0), (0, 2, 1, 6, 3)
    with contextlib.ExitStack() as stack:
        source, own = stack.enter_context(made(0, slot_bytes)), stack.enter_context(made(1, slot_bytes))
        assert own.has_checksums == (slot_bytes == SLOT_BYTES)
        served = Source(source)
        serving = threading.Thread(target=served.serve)
        serving.start()
        stack.callback(serving.join, DEADLINE_S)
        stack.callback(served.close)
        registered = {MappedPools.name: stack.enter_context(contextlib.closing(own.registered()))}
        links = peer_links("puller", slot_bytes)
        links._registered = registered
        links.update((served.member,))
        stack.callback(close_links, links)
        held = slots_of(source)
        sums = tuple(xxhash.xxh3_64_intdigest(held[number]) for number in source_slots)
        named = {"source_id": "source", "source_incarnation": 1}
        pull = Pull(pull_id=1, source_slots=source_slots, slots=slots, checksums=pack(sums), **named)  # type: ignore[arg-type]
        wrong = Pull(pull_id=2, source_slots=(1, 2), slots=(5, 4), checksums=pack((sums[3], 7)), **named)  # type: ignore[arg-type]
        monkeypatch.setattr(DevicePool, "writing", None, raising=False)  # no staging
        found, counters = await transferred(links, own, pull, Checksum(checksum_id=3, slots=slots), wrong)
        assert found == [
            Pulled(pull_id=1),
            Checksummed(checksum_id=3, checksums=pack(sums)),
            Pulled(pull_id=2, problem="1 of 2 checksums do not match"),
        ]
        now = slots_of(own)
        assert [now[number] for number in slots] == [held[number] for number in source_slots]
        assert (served.reads, counters.checksum_refusals) == (0, 1)


def test_the_owner_ends(served: Source, own: SharedPool, mapped: MappedPools) -> None:
    """Nobody reads, and its memory is let go all the same: its next life may need it."""
    link = connected(served, mapped)
    read = link.read_into_pool([1], [1])  # type: ignore[attr-defined]
    served.links[0].abort()
    wait_until(lambda: not is_mapped(link))
    with pytest.raises(LinkClosed):
        read.wait(DEADLINE_S)
    with pytest.raises(LinkClosed):
        read.poll()
    with pytest.raises(LinkClosed):
        link.read_into_pool([1], [1])  # type: ignore[attr-defined]
    link.abort()


def test_the_reader_ends_under_a_read(served: Source, own: SharedPool, mapped: MappedPools) -> None:
    link, before = connected(served, mapped), slots_of(own)
    read = link.read_into_pool([1], [0])  # type: ignore[attr-defined]
    link.abort()
    for _ in range(2):
        with pytest.raises(LinkClosed, match="closed on this side"):
            read.wait(DEADLINE_S)
    assert slots_of(own) == before and not is_mapped(link)


def is_mapped(link: TensorLink) -> bool:
    try:
        with link._memory.in_use():  # type: ignore[attr-defined]
            return True
    except ValueError:
        return False


@on_host_only
@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("FAKE_CUDA_APART", "1", "no peer access"),
        ("FAKE_CUDA_HIDES", "0", "CUDA_VISIBLE_DEVICES hides it"),
        ("FAKE_CUDA_FAILS", "cuDeviceCanAccessPeer:101", "cuDeviceCanAccessPeer: CUDA_ERROR_INVALID_DEVICE"),
        ("FAKE_CUDA_FAILS", "cuMemImportFromShareableHandle:1", "cuMemImportFromShareableHandle"),
        ("FAKE_CUDA_FAILS", "cuMemMap:2", "cuMemMap: CUDA_ERROR_OUT_OF_MEMORY"),
    ],
)
def test_where_it_cannot_be_frames_carry_the_blocks(
    served: Source,
    own: SharedPool,
    mapped: MappedPools,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    why: str,
) -> None:
    living = fake_cuda.living()
    monkeypatch.setenv(variable, value)
    with capture_logs() as logs:
        link = connected(served, mapped)
    (chosen,) = [line for line in logs if line["event"] == "a transport was chosen"]
    assert why in chosen["not_used"]["cuda_ipc"]
    assert link.transport == "unix" and not isinstance(link, PlacingLink)
    into = bytearray(SLOT_BYTES)
    link.read([3], [memoryview(into)], DEADLINE_S)
    assert into == slots_of(served.pool)[3]
    link.close()
    with pytest.raises(LinkClosed, match=why):
        connected(served, mapped, "cuda_ipc")
    assert fake_cuda.living() == living


def test_other_memory_than_the_owners_is_not_read(
    served: Source, own: SharedPool, mapped: MappedPools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where two GPUs say that they reach each other, and what is read is wrong."""
    assert served.pool.shared is not None
    monkeypatch.setattr(served.pool.shared, "mark", bytes(64))
    with pytest.raises(LinkClosed, match="what is read there is not what its owner wrote"):
        connected(served, mapped, "cuda_ipc")


@pytest.mark.parametrize(
    "told",
    [
        b"\xff",
        b'{"num_bytes":-1}',
        b'{"num_bytes":100,"mark":"00"}',
        msgspec.json.encode(GivenMemory(num_bytes=2**50, mark="00" * 64)),
        msgspec.json.encode(GivenMemory(num_bytes=SLOT_BYTES * NUM_SLOTS + 64, mark="zz" * 64)),
    ],
)
def test_nonsense_of_an_owner(
    served: Source, own: SharedPool, mapped: MappedPools, monkeypatch: pytest.MonkeyPatch, told: bytes
) -> None:
    monkeypatch.setattr(MappedPools, "attach", lambda *_: told)
    with pytest.raises(MalformedMessage):
        connected(served, mapped, "cuda_ipc")


def test_an_owner_that_gives_no_descriptor(
    served: Source, own: SharedPool, mapped: MappedPools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_pools, "give", lambda *_: "")
    with pytest.raises(LinkClosed, match="it gave no descriptor"):
        connected(served, mapped, "cuda_ipc")
    monkeypatch.setattr(mapped_pools, "give", lambda *_: "the test says so")
    with pytest.raises(LinkClosed, match="cannot be mapped: the test says so"):
        connected(served, mapped, "cuda_ipc")


@pytest.mark.parametrize("body", [b"", b"{}", b'{"intake":""}', b'{"intake":"' + b"x" * 101 + b'"}'])
def test_nonsense_of_a_reader(served: Source, body: bytes) -> None:
    link = connect(served.listener.endpoint, hello_to(identity("reader"), "source", 1), DEADLINE_S, "unix")  # type: ignore[arg-type]
    link.send(Attach(transport="cuda_ipc"), body)
    with pytest.raises(LinkClosed, match="body should be one of transport cuda_ipc"):
        link.recv(DEADLINE_S)
    wait_until(lambda: served.malformed)
    link.abort()


def test_over_tcp_nothing_is_given(served: Source) -> None:
    with DescriptorIntake() as intake:
        link = connect(served.listener.endpoint, hello_to(identity("reader"), "source", 1), DEADLINE_S, "tcp")
        link.send(Attach(transport="cuda_ipc"), msgspec.json.encode({"intake": intake.name}))
        _header, body = link.recv(DEADLINE_S)
        assert msgspec.json.decode(body, type=GivenMemory) == GivenMemory(why="this is no Unix socket")
        with pytest.raises(PoolUnmappable, match="no descriptor"):
            intake.take(os.getpid())
        link.close()


@on_host_only
def test_pools_that_are_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    device = CpuDevice(TritonBackend())
    assert mapped_pools_of(DevicePool(SLOT_BYTES, 2, device), device, "auto") is None
    with pytest.raises(ConfigError, match="cuda_ipc cannot be used: peers map no memory of this device"):
        mapped_pools_of(DevicePool(SLOT_BYTES, 2, device), device, "cuda_ipc")
    with PoolMemory(SLOT_BYTES, 2) as memory:
        assert mapped_pools_of(memory, device, "auto") is None
    on_host(device)
    assert DevicePool(SLOT_BYTES, 2, device, is_shared=False).shared is None
    monkeypatch.setenv("FAKE_CUDA_FAILS", "cuMemCreate:2")
    with capture_logs() as logs:
        pool = DevicePool(SLOT_BYTES, 2, device)
    assert pool.shared is None and pool.memory.nbytes == 2 * SLOT_BYTES
    assert logs[0]["event"] == "peers cannot map the pool" and "OUT_OF_MEMORY" in logs[0]["why"]


OWNER = """
import sys, msgspec
from tests.actors.worker.links.test_mapped_pools import Source, made
with made() as pool:
    served = Source(pool)
    sys.stdout.buffer.write(msgspec.json.encode(served.listener.endpoint) + b"\\n")
    sys.stdout.flush()
    served.serve()
"""


def test_from_process_to_process(own: SharedPool, mapped: MappedPools) -> None:
    """Two processes, on one GPU where there is one; the owner is killed."""
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            endpoint = msgspec.json.decode(process.stdout.readline(), type=DataEndpoint)
            registered = {MappedPools.name: mapped}
            link = connect(endpoint, hello_to(identity("reader"), "source", 1), DEADLINE_S, "cuda_ipc", registered)
            assert isinstance(link, PlacingLink)
            read = link.read_into_pool([5, 1], [0, 3])
            assert read is not None
            read.wait(DEADLINE_S)
            now = slots_of(own)
            assert (now[0][0], now[3][0]) == (6, 2)
        finally:
            process.kill()
    with pytest.raises(LinkClosed):
        again = link.read_into_pool([5], [0])
        assert again is not None
        again.wait(DEADLINE_S)
    wait_until(lambda: not is_mapped(link))
    link.abort()
