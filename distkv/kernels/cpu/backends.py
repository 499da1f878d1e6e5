"""Backends of the CPU by choice."""

from __future__ import annotations

from distkv.kernels.backend import Backend
from distkv.kernels.cpu.dispatch import Choice, choose
from distkv.kernels.cpu.native_backend import NativeBackend
from distkv.kernels.cpu.torch_backend import TorchBackend


def backend_of(choice: Choice | None = None) -> Backend:
    """What was chosen; the best there is when nothing was."""
    choice = choice or choose()
    return TorchBackend() if choice.native is None else NativeBackend(choice.native)
