"""What an instance computes with: a device, the attention of its backend, and what lies between two attentions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec

import torch

from distkv.engine.device.cuda import CudaDevice
from distkv.engine.device.device import Device, HostDevice
from distkv.errors import ConfigError
from distkv.kernels import Backend
from distkv.kernels.cpu.backends import backend_of
from distkv.kernels.cpu.dispatch import Choice, choose
from distkv.kernels.cpu.layer_tail import LayerTail, LayerTailWeights, StepwiseLayerTail, layer_tail_of
from distkv.kernels.cpu.library import Native
from distkv.kernels.cpu.linear import MakeLinear, TorchLinear, linear_kind, linear_maker
from distkv.kernels.cpu.ops import Ops, ops_of
from distkv.types import CpuKernels

_INSTALL = "pip install 'distkv[gpu]'"


@dataclass(frozen=True)
class Compute:
    """level: of the CPU, or "triton"; why it was chosen, in words. layer_tail: makes what follows one
    layer's attention. native: the library of functions for CPUs, where it computes."""

    device: Device
    backend: Backend
    level: str
    why: str
    ops: Ops
    layer_tail: Callable[[LayerTailWeights], LayerTail]
    make_linears: Callable[[torch.dtype], MakeLinear]
    linears: Callable[[torch.dtype], str]
    native: Native | None = None


def on_cpu(choice: Choice | None = None) -> Compute:
    """With this choice of kernels, the best there is by default."""
    choice = choice or choose()
    return Compute(
        device=HostDevice(),
        backend=backend_of(choice),
        level=choice.level,
        why=choice.why,
        ops=ops_of(choice),
        layer_tail=partial(layer_tail_of, choice),
        make_linears=partial(linear_maker, choice),
        linears=partial(linear_kind, choice),
        native=choice.native,
    )


def with_triton(device: Device, why: str = "asked for") -> Compute:
    """Triton's kernels on a device: a GPU, or the host where Triton interprets them."""
    from distkv.kernels.triton.backend import TritonBackend
    from distkv.kernels.triton.ops import TritonOps
    from distkv.kernels.triton.tuned import TunedTable

    is_gpu = device.place.type == "cuda"
    ops = TritonOps()
    return Compute(
        device=device,
        backend=TritonBackend(TunedTable.load(torch.cuda.get_device_name(device.place)) if is_gpu else None),
        level="triton",
        why=why,
        ops=ops,
        layer_tail=lambda weights: StepwiseLayerTail(weights, ops),
        make_linears=lambda _dtype: TorchLinear,
        linears=lambda _dtype: "cublas" if is_gpu else "torch",
    )


def choose_compute(device: str = "auto", cpu_kernels: CpuKernels = "auto") -> Compute:
    """For a `device` setting: auto, cpu, cuda or cuda:N. auto is the first GPU if there is one and Triton is installed.

    Raises ConfigError for what is not here.
    """
    if device == "cpu":
        return on_cpu(choose(cpu_kernels))
    index = int(device.partition(":")[2] or 0)
    missing = _missing(index)
    if missing is None:
        return with_triton(CudaDevice(index), "asked for" if device != "auto" else "there is a CUDA device")
    problem, hint = missing
    if device == "auto":
        found = on_cpu(choose(cpu_kernels))
        # Nobody misses a GPU that is not there; one that is idle should not go unnoticed.
        idle = f"; no use of the GPU: {problem} ({hint})" if torch.cuda.is_available() else ""
        return replace(found, why=found.why + idle)
    raise ConfigError("device", f"{device} is not here: {problem}", hint)


def _missing(index: int) -> tuple[str, str] | None:
    """What a GPU lacks, and what to do; None if it can compute."""
    if not torch.cuda.is_available():
        built = "" if torch.version.cuda else "; this torch was built without CUDA"
        return f"no CUDA device was found{built}", "use --device cpu"
    if index >= (count := torch.cuda.device_count()):
        return f"the last CUDA device is cuda:{count - 1}", "use one that is there"
    if find_spec("triton") is None:
        return "Triton is not installed", _INSTALL
    return None
