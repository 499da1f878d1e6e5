"""A pool on a device as bytes: read and written through staging, reached by peers over their links."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator

import msgspec
import pytest
import torch
import xxhash
from structlog.testing import capture_logs

from distkv.actors.worker import device_pool, pool_size
from distkv.actors.worker.device_pool import DevicePool
from distkv.actors.worker.pool_size import kv_dtype, make_pool
from distkv.actors.worker.pulls import pull_queue, source_threads
from distkv.checksums import pack
from distkv.engine.device.cpu import CpuDevice
from distkv.engine.device.cuda import CudaDevice
from distkv.engine.device.device import Device
from distkv.engine.device.host_memory import HostMemory
from distkv.errors import ConfigError, LinkClosed, LinkError
from distkv.wire.links import PoolMemory, connect, hello_to, listen, serve_read
from distkv.wire.messages.common import Member
from distkv.wire.messages.data import ReadBlocks
from distkv.wire.messages.from_worker import Checksummed, Pulled
from distkv.wire.messages.to_worker import Checksum, Pull
from tests.actors.links import DEADLINE_S, close_links, identity, peer_links, transferred
from tests.actors.worker.test_spec import SPEC

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

from distkv.kernels.triton.backend import TritonBackend

pytestmark = [pytest.mark.gpu] if torch.cuda.is_available() else []

SLOT_BYTES, NUM_SLOTS = 328, 7


@pytest.fixture
def device() -> Device:
    return CudaDevice(0) if torch.cuda.is_available() else CpuDevice(TritonBackend())


@pytest.fixture(params=["checksums by the device", "checksums by the host"])
def pool(request: pytest.FixtureRequest, device: Device, monkeypatch: pytest.MonkeyPatch) -> DevicePool:
    """Full of random bytes; two slots at once fit its staging."""
    monkeypatch.setattr(TritonBackend, "has_checksums", lambda _, size: request.param.endswith("device") and size > 240)
    monkeypatch.setattr(device_pool, "STAGING_BYTES", 2 * SLOT_BYTES)
    pool = DevicePool(SLOT_BYTES, NUM_SLOTS, device)
    held = bytearray(secrets.token_bytes(SLOT_BYTES * NUM_SLOTS))
    pool.memory.copy_(torch.frombuffer(held, dtype=torch.uint8))
    return pool


def slot(pool: DevicePool, number: int) -> bytes:
    return bytes(pool.memory.cpu()[number * SLOT_BYTES : (number + 1) * SLOT_BYTES].numpy())


@contextlib.contextmanager
def served(pool: DevicePool) -> Iterator[Member]:
    """A listener that answers reads from the pool."""
    listener = listen("127.0.0.1:0", identity("source"), pool)

    def serve() -> None:
        with contextlib.suppress(LinkError):
            while True:
                link = listener.accept(DEADLINE_S)
                assert link is not None
                with contextlib.suppress(LinkClosed):
                    while True:
                        header, _ = link.recv(DEADLINE_S)
                        assert isinstance(header, ReadBlocks)
                        serve_read(link, header, pool)
                link.abort()

    thread = threading.Thread(target=serve)
    thread.start()
    yield Member(instance_id="source", incarnation=1, address="", state="ready", data=listener.endpoint)
    listener.close()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_bytes_there_and_back(pool: DevicePool) -> None:
    with pool.reading((5, 0, 2)) as views:
        assert b"".join(views) == slot(pool, 5) + slot(pool, 0) + slot(pool, 2)
    with pool.reading((5, 0), (32, 16)) as views:
        assert b"".join(views) == slot(pool, 5)[32:48] + slot(pool, 0)[32:48]
    before = [slot(pool, number) for number in range(NUM_SLOTS)]
    with pool.writing((6, 1)) as (view,):
        view[:SLOT_BYTES], view[SLOT_BYTES:] = b"a" * SLOT_BYTES, b"b" * SLOT_BYTES
        assert slot(pool, 6) == before[6], "not before all is there"
    before[6], before[1] = b"a" * SLOT_BYTES, b"b" * SLOT_BYTES
    assert [slot(pool, number) for number in range(NUM_SLOTS)] == before


def test_what_failed_on_the_way_is_not_written(pool: DevicePool) -> None:
    before = slot(pool, 3)
    with pytest.raises(LinkClosed), pool.writing((3,)) as (view,):
        view[:] = bytes(SLOT_BYTES)
        raise LinkClosed("x", "the test says so")
    assert slot(pool, 3) == before


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_peers_read_over_the_link(pool: DevicePool, transport: str) -> None:
    with served(pool) as member, capture_logs() as logs:
        assert member.data is not None
        link = connect(member.data, hello_to(identity("peer"), "source", 1), DEADLINE_S, transport)  # type: ignore[arg-type]
        into = bytearray(3 * SLOT_BYTES)
        link.read((4, 5, 1), [memoryview(into)], DEADLINE_S)
        link.close()
    assert into == slot(pool, 4) + slot(pool, 5) + slot(pool, 1)
    assert [line for line in logs if line["log_level"] == "warning"] == [], "nothing is wrong with that"


def test_it_cannot_be_mapped(pool: DevicePool) -> None:
    with served(pool) as member, pytest.raises(LinkClosed, match="it lies in the memory of a GPU"):
        assert member.data is not None
        connect(member.data, hello_to(identity("peer"), "source", 1), DEADLINE_S, "shm")


def test_within_a_process_there_is_no_link_to_it(pool: DevicePool) -> None:
    with pytest.raises(ConfigError, match="pools in main memory"):
        listen("inproc://here", identity("source"), pool)


async def test_transfers_in_batches(pool: DevicePool, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five slots where staging has room for two: checksummed, pulled, verified; then one with a wrong checksum."""
    monkeypatch.setattr(source_threads, "IDLE_S", 0.01)
    # Both workers are in this process, and Triton interprets one kernel at a time: none while the next is read.
    monkeypatch.setattr(pull_queue, "READS_AHEAD", 1)
    own = DevicePool(SLOT_BYTES, NUM_SLOTS, device)
    own.memory.zero_()
    links = peer_links("puller", SLOT_BYTES)
    source_slots, slots = (4, 5, 6, 1, 0), (0, 2, 1, 6, 3)
    sums = pack(xxhash.xxh3_64_intdigest(slot(pool, number)) for number in source_slots)
    with served(pool) as member:
        links.update((member,))
        pull = Pull(
            pull_id=1,
            source_id="source",
            source_incarnation=1,
            source_slots=source_slots,
            slots=slots,
            checksums=sums,
        )
        wrong = Pull(
            pull_id=2, source_id="source", source_incarnation=1, source_slots=(1,), slots=(5,), checksums=pack([7])
        )
        found, _ = await transferred(links, own, pull, Checksum(checksum_id=3, slots=slots), wrong)
        close_links(links)
    assert found == [
        Pulled(pull_id=1),
        Checksummed(checksum_id=3, checksums=sums),
        Pulled(pull_id=2, problem="1 of 1 checksums do not match"),
    ]
    assert [slot(own, number) for number in slots] == [slot(pool, number) for number in source_slots]


def test_sizes(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def spec(**changes: object):
        return msgspec.structs.replace(SPEC.engine, kv_cache_memory_bytes=None, **changes)  # type: ignore[type-var]

    host = CpuDevice()
    memory, _ = make_pool(spec(kv_tokens=100), 64, host)
    assert isinstance(memory, PoolMemory) and memory.num_slots == 6
    memory.close()
    monkeypatch.setattr(CpuDevice, "kv_budget", lambda self, share: int(share * 1000))
    memory, view = make_pool(spec(gpu_memory_utilization=0.5), 64, host)
    assert (memory.num_slots, memory.slot_bytes) == (7, 64) and len(view) == 448
    assert isinstance(memory, PoolMemory)
    memory.close()
    with pytest.raises(ConfigError, match="kv_cache_memory_bytes: 0 bytes for the pool are less than one rBlock"):
        make_pool(spec(gpu_memory_utilization=0.0), 64, host)
    too_large = spec(kv_tokens=2**50)
    for settings, key in (too_large, "kv_tokens"), (spec(), "kv_cache_memory_bytes"):
        monkeypatch.setattr(CpuDevice, "kv_budget", lambda self, share: 2**50)
        with pytest.raises(ConfigError, match=f"{key}: a pool of .* GiB is more than the .* GiB of this machine"):
            make_pool(settings, 64, host)


def test_a_pool_that_is_more_than_a_container_has_left_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was taken, and the worker killed once requests filled it."""
    settings = msgspec.structs.replace(SPEC.engine, kv_cache_memory_bytes=None, kv_tokens=2048)
    needed = 2048 // SPEC.engine.block_size * 2**20
    for left in (needed, needed - 1):
        memory = HostMemory(2 * needed, 2 * needed, left)
        monkeypatch.setattr(pool_size, "host_memory", lambda memory=memory: memory)
        if left == needed:
            make_pool(settings, 2**20, CpuDevice())[0].close()
    with pytest.raises(ConfigError, match=r"kv_tokens: a pool of .* is more than the .* that are left of the .*"):
        make_pool(settings, 2**20, CpuDevice())


def test_fp8_is_for_gpus() -> None:
    fp8 = msgspec.structs.replace(SPEC.engine, kv_cache_dtype="fp8")
    assert kv_dtype(SPEC.engine, torch.bfloat16, CpuDevice()) == torch.bfloat16
    with pytest.raises(ConfigError, match="kv_cache_dtype: the kernels of cpu have no fp8"):
        kv_dtype(fp8, torch.bfloat16, CpuDevice())

    assert kv_dtype(fp8, torch.bfloat16, CpuDevice(TritonBackend())) == torch.float8_e4m3fn
