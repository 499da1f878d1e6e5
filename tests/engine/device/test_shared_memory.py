"""Memory of a GPU that processes map, by a driver that has CUDA's interface and memory of the host."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from distkv.engine.device.shared_memory.driver import ARGUMENTS, Driver, DriverError
from distkv.engine.device.shared_memory.memory import MARK_BYTES, MemorySharing
from distkv.engine.device.shared_memory.tensors import tensor_over
from tests.engine.device import fake_cuda

MIB = 2**20
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    if fake_cuda.why_not():
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # what CUDA opens for the process stays open
    before = fake_cuda.living(), len(list(Path("/proc/self/fd").iterdir()))
    yield
    assert (fake_cuda.living(), len(list(Path("/proc/self/fd").iterdir()))) == before


def test_what_one_gpu_writes_another_one_reads() -> None:
    shared = fake_cuda.sharing(0).allocate(3 * MIB)
    assert shared.tensor.nbytes == 4 * MIB, "a whole number of the driver's units"
    mapped = fake_cuda.sharing(1).map(shared.descriptor, shared.tensor.nbytes)
    shared.tensor[: 3 * MIB] = torch.arange(3 * MIB, dtype=torch.int64).to(torch.uint8)
    with mapped.in_use() as memory:
        assert memory.data_ptr() != shared.tensor.data_ptr()
        assert torch.equal(memory, shared.tensor)
        assert bytes(memory[-MARK_BYTES:].tolist()) == shared.mark
    mapped.close()
    mapped.close()
    with pytest.raises(ValueError, match="not mapped any more"), mapped.in_use():
        pass
    shared.close()


def test_it_is_unmapped_by_the_last_who_uses_it() -> None:
    shared = fake_cuda.sharing().allocate(MIB)
    living = fake_cuda.living()
    mapped = fake_cuda.sharing().map(shared.descriptor, shared.tensor.nbytes)
    with mapped.in_use() as memory:
        with mapped.in_use():
            mapped.close()
        assert memory[-1] == shared.mark[-1], "still mapped"
    assert fake_cuda.living() == living
    shared.close()


def test_it_outlives_its_owner_until_it_is_unmapped() -> None:
    shared = fake_cuda.sharing().allocate(MIB)
    mapped = fake_cuda.sharing().map(shared.descriptor, shared.tensor.nbytes)
    mark = shared.mark
    shared.close()
    with mapped.in_use() as memory:
        assert bytes(memory[-MARK_BYTES:].tolist()) == mark
    mapped.close()


def test_peers_cannot_write() -> None:
    """Who tries is ended, by the host's memory as by a GPU's."""
    code = (
        "import torch; from tests.engine.device import fake_cuda\n"
        "shared = fake_cuda.sharing().allocate(1)\n"
        "with fake_cuda.sharing(1).map(shared.descriptor, shared.tensor.nbytes).in_use() as memory:\n"
        "    assert memory[0] == 0\n"
        "    memory[0] = 1\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert done.returncode == -11, done.stderr


def test_a_driver_that_maps_nothing_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CUDA_NO_READ_ONLY", "1")
    sharing = fake_cuda.sharing()
    shared = sharing.allocate(MIB)
    for _ in range(2):
        mapped = sharing.map(shared.descriptor, shared.tensor.nbytes)
        assert sharing.read_only is False
        with mapped.in_use() as memory:
            assert memory[-1] == shared.mark[-1]
        mapped.close()
    shared.close()


@pytest.mark.parametrize("call", ["cuMemCreate", "cuMemExportToShareableHandle", "cuMemAddressReserve", "cuMemMap"])
def test_nothing_is_left_of_an_allocation_that_fails(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sharing = fake_cuda.sharing()
    monkeypatch.setenv("FAKE_CUDA_FAILS", f"{call}:2")
    with pytest.raises(DriverError, match=f"{call}: CUDA_ERROR_OUT_OF_MEMORY"):
        sharing.allocate(MIB)


@pytest.mark.parametrize(
    "call", ["cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"]
)
def test_nothing_is_left_of_a_mapping_that_fails(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sharing = fake_cuda.sharing()
    shared = sharing.allocate(MIB)
    monkeypatch.setenv("FAKE_CUDA_FAILS", f"{call}:1")
    with pytest.raises(DriverError, match=f"{call}: CUDA_ERROR_INVALID_VALUE"):
        sharing.map(shared.descriptor, shared.tensor.nbytes)
    monkeypatch.delenv("FAKE_CUDA_FAILS")
    shared.close()


def test_memory_of_another_size_or_kind_is_refused() -> None:
    sharing = fake_cuda.sharing()
    shared = sharing.allocate(MIB)
    with pytest.raises(DriverError, match="cuMemMap: CUDA_ERROR_INVALID_VALUE"):
        sharing.map(shared.descriptor, 2 * shared.tensor.nbytes)
    with Path("/dev/null").open() as other, pytest.raises(DriverError, match="cuMemImportFromShareableHandle"):
        sharing.map(other.fileno(), shared.tensor.nbytes)
    shared.close()


def test_which_gpus_reach_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    sharing, (own, other) = fake_cuda.sharing(), fake_cuda.UNITS
    assert not sharing.why_unreachable(own)
    assert not sharing.why_unreachable(other)
    monkeypatch.setenv("FAKE_CUDA_APART", "1")
    assert not sharing.why_unreachable(own), "instances on one GPU"
    assert "no peer access" in sharing.why_unreachable(other)
    monkeypatch.setenv("FAKE_CUDA_HIDES", "1")
    assert "CUDA_VISIBLE_DEVICES hides it" in sharing.why_unreachable(other)


def test_a_gpu_that_does_not_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CUDA_NO_DESCRIPTORS", "1")
    with pytest.raises(DriverError, match="cpu has no shareable handles"):
        MemorySharing(fake_cuda.driver(), CPU)


def test_without_a_driver_or_with_an_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DriverError, match="no-such-cuda"):
        Driver(0, "no-such-cuda.so")
    with pytest.raises(DriverError, match="cuInit: this driver does not have it"):
        Driver(0, "libc.so.6")
    with pytest.raises(DriverError, match="cuDeviceGet: CUDA_ERROR_INVALID_DEVICE"):
        fake_cuda.driver(2)


def test_every_call_exists_under_its_name() -> None:
    library = ctypes.CDLL(fake_cuda.library())
    assert [name for name in ARGUMENTS if not hasattr(library, name)] == []


def test_a_tensor_does_not_keep_what_it_shows() -> None:
    """Nor is anything freed but what describes it."""
    memory = bytearray(range(200))
    address = ctypes.addressof((ctypes.c_ubyte * 200).from_buffer(memory))
    tensor = tensor_over(address, 200, CPU)
    assert tensor.dtype == torch.uint8 and tensor.tolist() == list(range(200))
    tensor[3] = 9
    part = tensor[3:].view(-1)
    del tensor
    gc.collect()
    assert memory[3] == 9 and part[0] == 9
    for _ in range(1000):
        tensor_over(address, 200, CPU)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu() -> None:
    """Of one process, at two addresses; with the driver that is there."""
    place = torch.device("cuda", 0)
    sharing = MemorySharing(Driver(0), place)
    shared = sharing.allocate(3 * MIB)
    mapped = sharing.map(shared.descriptor, shared.tensor.nbytes)
    shared.tensor[:1000] = 7
    torch.cuda.synchronize()
    with mapped.in_use() as memory:
        assert memory.device == place and memory.data_ptr() != shared.tensor.data_ptr()
        assert torch.equal(memory.cpu(), shared.tensor.cpu())
    assert not sharing.why_unreachable(str(torch.cuda.get_device_properties(place).uuid))
    mapped.close()
    shared.close()
