"""A device that behaves like a GPU where that shows, on the host: copies are copies, graphs replay what they hold."""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch import Tensor

from distkv.engine.device.cpu import CpuDevice
from distkv.engine.device.device import Captured, CompletedCopy, PendingCopy, Run
from distkv.kernels import Backend, FusedQkv, LayerKv, RowKv
from distkv.kernels.cpu.torch_backend import TorchBackend


class AsyncHost(CpuDevice):
    """captured: how often `capture` was called; replayed: how often what it returned was. fails: `capture` does.
    copies_in, copies_out: how many copies to the device and to the host were begun."""

    is_async = True

    def __init__(self, backend: Backend | None = None) -> None:
        super().__init__(backend or RowTorchBackend())
        self.captured = self.replayed = self.copies_in = self.copies_out = 0
        self.fails = False
        self._inside = 0

    def to_device(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        assert self._inside, "a copy outside of every stream"
        self.copies_in += 1
        return tuple(tensor.clone() for tensor in tensors)

    def to_host(self, *tensors: Tensor, aside: bool = False) -> PendingCopy:
        assert self._inside, "a copy outside of every stream"
        self.copies_out += 1
        return CompletedCopy(tuple(tensor.clone() for tensor in tensors))

    def stream(self) -> AbstractContextManager[object]:
        return _Stream(self)

    def shared_stream(self, *, urgent: bool = False) -> AbstractContextManager[object]:
        return _Stream(self)

    def capture(self, run: Run, group: int = 0) -> Captured:
        if self.fails:
            raise RuntimeError("the test says so")
        self.captured += 1
        captured = super().capture(run, group)

        def replay() -> None:
            self.replayed += 1
            captured.replay()

        return Captured(replay, captured.results)


class _Stream:
    def __init__(self, device: AsyncHost) -> None:
        self._device = device

    def __enter__(self) -> None:
        self._device._inside += 1

    def __exit__(self, *_: object) -> None:
        self._device._inside -= 1


class RowTorchBackend(TorchBackend):
    """What Triton's backend does, in torch: the interpreter is slow."""

    layout: type[LayerKv] = RowKv

    def store(self, qkv: FusedQkv, kv: LayerKv, slots: Tensor, offsets: Tensor) -> Tensor:
        q, k, v = qkv.rotated()
        stored = slots >= 0
        kv.write(slots[stored], offsets[stored], k[stored], v[stored])
        return q
