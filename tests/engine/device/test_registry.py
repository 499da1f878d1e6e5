"""Which device and kernels a setting means here."""

from __future__ import annotations

from importlib import util
from pathlib import Path

import pytest
import torch

import distkv
from distkv.config.values import check_device
from distkv.engine.device import cuda, registry
from distkv.engine.device.cpu import CpuDevice
from distkv.engine.device.cuda import CudaDevice
from distkv.engine.device.device import Device
from distkv.engine.device.registry import DEVICES, choose_device
from distkv.errors import ConfigError
from distkv.kernels import PanelKv
from distkv.types import AttentionBackend, CpuKernels


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def test_without_a_gpu_auto_is_the_cpu(no_gpu: None) -> None:
    assert isinstance(choose_device("auto"), CpuDevice)
    assert choose_device("auto", "torch").backend.name == choose_device("cpu", "torch").backend.name == "torch"
    assert choose_device("auto", "torch").why == "asked for"


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:3"])
def test_no_gpu_where_one_is_asked_for(no_gpu: None, device: str) -> None:
    with pytest.raises(ConfigError, match=rf"device: {device} is not here: no CUDA device was found.*use --device cpu"):
        choose_device(device)


def test_a_gpu_beyond_the_last(two_gpus: None) -> None:
    with pytest.raises(ConfigError, match="cuda:2 is not here: the last CUDA device is cuda:1"):
        choose_device("cuda:2")


def test_a_gpu_without_triton(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "find_spec", lambda name: None if name == "triton" else util.find_spec(name))
    with pytest.raises(
        ConfigError, match=r"cuda is not here: Triton is not installed \(in .*: pip install '\.\[gpu\]'\)"
    ):
        choose_device("cuda")
    found = choose_device("auto")
    assert isinstance(found, CpuDevice)
    assert found.why.endswith("; no use of cuda: Triton is not installed (in distkv's checkout: pip install '.[gpu]')")


@pytest.mark.parametrize(("device", "index"), [("auto", 0), ("cuda", 0), ("cuda:1", 1)])
def test_a_gpu_that_is_there(two_gpus: None, monkeypatch: pytest.MonkeyPatch, device: str, index: int) -> None:
    pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")

    class NoStreams(CudaDevice):
        def __init__(self, index: int, attention: AttentionBackend) -> None:
            self.place = torch.device("cuda", index)
            self.why = f"attention by {attention}"

    monkeypatch.setattr(registry, "DEVICES", DEVICES | {"cuda": NoStreams})
    found = choose_device(device, attention="fa3")
    assert isinstance(found, NoStreams)
    assert (found.place.index, found.why) == (index, "attention by fa3")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("flashinfer", r"flashinfer is not here: no module flashinfer \(pip install 'flashinfer-python>=0.6'\)"),
        ("fa3", r"fa3 is not here: no module flash_attn_interface \(build the folder hopper of .*flash-attention\)"),
    ],
)
def test_attention_of_a_library_that_is_not_installed(
    two_gpus: None, monkeypatch: pytest.MonkeyPatch, name: AttentionBackend, hint: str
) -> None:
    libraries = pytest.importorskip("distkv.kernels.triton.libraries.backend", reason="Triton is not installed")
    monkeypatch.setattr(libraries, "find_spec", lambda _module: None)
    with pytest.raises(ConfigError, match=f"attention_backend: {hint}"):
        choose_device("cuda", attention=name)


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_attention_of_a_gpu_on_a_cpu(no_gpu: None, device: str) -> None:
    with pytest.raises(ConfigError, match=r"attention_backend: flashinfer is for GPUs, and a CPU computes"):
        choose_device(device, attention="flashinfer")


def test_the_cpu_when_it_is_asked_for(two_gpus: None) -> None:
    found = choose_device("cpu", "torch")
    assert (found.backend.name, found.backend.linear_name(torch.float32)) == ("torch", "torch")
    assert found.backend.layout is PanelKv


def test_another_kind_of_device_is_one_line(no_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Npu(CpuDevice):
        @classmethod
        def open(cls, index: int, cpu_kernels: CpuKernels, attention: AttentionBackend) -> Npu:
            return cls(why=f"number {index}")

    devices: dict[str, type[Device]] = {"npu": Npu, **DEVICES}
    monkeypatch.setattr(registry, "DEVICES", devices)
    assert isinstance(choose_device("auto"), Npu)
    assert choose_device("npu:2").why == "number 2"


def test_settings_take_the_devices_that_there_are() -> None:
    for name in (*DEVICES, "auto"):
        check_device(name, key="device")


def test_cuda_is_called_in_one_place() -> None:
    """Everything else runs on the host too, and is tested there."""
    root = Path(distkv.__file__).parent
    files = [file for package in ("engine", "actors") for file in (root / package).rglob("*.py")]
    callers = {file.name for file in files if "torch.cuda" in file.read_text(encoding="utf-8")}
    assert callers == {"cuda.py", "cuda_graphs.py", "cuda_streams.py"}
