"""Which device and kernels a setting means here."""

from __future__ import annotations

from importlib import util
from pathlib import Path

import pytest
import torch

import distkv
from distkv.engine.device import compute
from distkv.engine.device.compute import choose_compute, on_cpu
from distkv.engine.device.device import DEFAULT_POOL_BYTES, HostDevice, ThreadStreams
from distkv.errors import ConfigError
from distkv.kernels import PanelKv


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def test_without_a_gpu_auto_is_the_cpu(no_gpu: None) -> None:
    assert isinstance(choose_compute("auto").device, HostDevice)
    assert choose_compute("auto", "torch").level == choose_compute("cpu", "torch").level == "torch"


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:3"])
def test_no_gpu_where_one_is_asked_for(no_gpu: None, device: str) -> None:
    with pytest.raises(ConfigError, match=rf"device: {device} is not here: no CUDA device was found.*use --device cpu"):
        choose_compute(device)


def test_a_gpu_beyond_the_last(two_gpus: None) -> None:
    with pytest.raises(ConfigError, match="cuda:2 is not here: the last CUDA device is cuda:1"):
        choose_compute("cuda:2")


def test_a_gpu_without_triton(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "find_spec", lambda name: None if name == "triton" else util.find_spec(name))
    with pytest.raises(ConfigError, match=r"cuda is not here: Triton is not installed \(pip install 'distkv\[gpu\]'\)"):
        choose_compute("cuda")
    found = choose_compute("auto")
    assert isinstance(found.device, HostDevice)
    assert found.why.endswith("; no use of the GPU: Triton is not installed (pip install 'distkv[gpu]')")


@pytest.mark.parametrize(("device", "index"), [("auto", 0), ("cuda", 0), ("cuda:1", 1)])
def test_a_gpu_that_is_there(two_gpus: None, monkeypatch: pytest.MonkeyPatch, device: str, index: int) -> None:
    monkeypatch.setattr(compute, "CudaDevice", lambda index: index)
    monkeypatch.setattr(compute, "with_triton", lambda device, why: (device, why))
    assert choose_compute(device)[0] == index  # type: ignore[index]


def test_the_cpu_when_it_is_asked_for(two_gpus: None) -> None:
    found = choose_compute("cpu", "torch")
    assert (found.level, found.native, found.linears(torch.float32)) == ("torch", None, "torch")
    assert found.backend.layout is PanelKv


def test_the_host_as_a_device() -> None:
    device = on_cpu().device
    tensor = torch.arange(3)
    assert device.to_device(tensor)[0] is tensor and device.to_host(tensor).wait()[0] is tensor
    assert 0 < device.kv_budget(0.9) <= DEFAULT_POOL_BYTES
    streams = ThreadStreams(device)
    assert streams.current() is streams.current()


def test_cuda_is_called_in_one_place() -> None:
    """Everything else runs on the host too, and is tested there."""
    root = Path(distkv.__file__).parent
    files = [file for package in ("engine", "actors") for file in (root / package).rglob("*.py")]
    callers = {file.name for file in files if "torch.cuda" in file.read_text(encoding="utf-8")}
    assert callers == {"cuda.py", "compute.py"}
