"""A device that behaves like a GPU where that shows, on the host: copies are copies, graphs replay what they hold."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distkv.engine.device.cpu import CpuDevice
from distkv.engine.device.device import Captured, CompletedCopy, PendingCopy, Run
from distkv.kernels import AttentionMetadata, Backend, BlockTable, FusedQkv, LayerKv, RowKv
from distkv.kernels.attention.static_decode import StaticDecode, StaticInputs
from distkv.kernels.cpu.torch_backend import TorchBackend


class AsyncHost(CpuDevice):
    """captured: how often `capture` was called; replayed: how often what it returned was. fails: `capture` does.
    copies_in, copies_out: how many copies to the device and to the host were begun. Its operations are done when they
    return, also those that wait for mail."""

    is_async = True

    def __init__(self, backend: Backend | None = None) -> None:
        super().__init__(backend or RowTorchBackend())
        self.captured = self.replayed = self.copies_in = self.copies_out = 0
        self.fails = False
        self._inside = threading.local()

    def to_device(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        assert self._is_inside, "a copy outside of every stream"
        self.copies_in += 1
        return tuple(tensor.clone() for tensor in tensors)

    def write(self, target: Tensor, source: Tensor) -> None:
        assert self._is_inside, "a copy outside of every stream"
        self.copies_in += 1
        target.copy_(source)

    def to_host(self, *tensors: Tensor, aside: bool = False) -> PendingCopy:
        assert self._is_inside, "a copy outside of every stream"
        self.copies_out += 1
        return CompletedCopy(tuple(tensor.clone() for tensor in tensors))

    @property
    def _is_inside(self) -> bool:
        return getattr(self._inside, "depth", 0) > 0

    def share(self, memory: memoryview) -> Tensor:
        return torch.frombuffer(memory, dtype=torch.uint8)

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
        self._enter(1)

    def __exit__(self, *_: object) -> None:
        self._enter(-1)

    def _enter(self, change: int) -> None:
        inside = self._device._inside
        inside.depth = getattr(inside, "depth", 0) + change


class RowTorchBackend(TorchBackend):
    """What Triton's backend does, in torch: the interpreter is slow."""

    layout: type[LayerKv] = RowKv
    static_keys = (40, 2**31 - 1)

    def store(self, qkv: FusedQkv, kv: LayerKv, slots: Tensor, offsets: Tensor) -> Tensor:
        q, k, v = qkv.rotated()
        stored = slots >= 0
        kv.write(slots[stored], offsets[stored], k[stored], v[stored])
        return q

    def static_decode(self, inputs: StaticInputs, kv: LayerKv, most_keys: int) -> StaticDecode:
        return TorchStaticDecode(self, inputs, kv.block_tokens, most_keys)


class TorchStaticDecode:
    """Attends by the tables as they are when it is called. planned: how often it was."""

    def __init__(self, backend: Backend, inputs: StaticInputs, block_tokens: int, most_keys: int) -> None:
        self._backend, self._inputs, self._most_keys = backend, inputs, most_keys
        self._block_tokens = block_tokens
        self._rows: list[tuple[int, int, int]] = []
        self.planned = 0
        rows, heads, dim = inputs.attended.shape
        self.partials = torch.zeros(rows, heads, dim), torch.zeros(rows, heads)

    def plan(self, places: NDArray[np.int64], first_positions: NDArray[np.int64], keys: NDArray[np.int64]) -> None:
        assert keys.max() <= self._most_keys
        assert (places % self._inputs.max_blocks == 0).all()
        self._rows = list(zip(places.tolist(), first_positions.tolist(), keys.tolist(), strict=True))
        self.planned += 1

    def attend(self, q: Tensor, kv: LayerKv, scale: float, window: int | None) -> None:
        assert window in self._inputs.windows
        tokens, positions = self._block_tokens, self._inputs.positions.tolist()
        for row, (place, first, keys) in enumerate(self._rows):
            seen = positions[row] + 1 - first
            assert 0 < seen <= keys
            slots = self._inputs.tables[place : place - (-seen // tokens)].tolist()
            table = BlockTable(slots, range(first, first + len(slots) * tokens, tokens), first + seen, tokens)
            metadata = AttentionMetadata((range(1),), (table,), self._inputs.positions[row : row + 1])
            out, lse = self._backend.attend(q[row : row + 1], kv, metadata, scale, window)
            if self._inputs.merged_elsewhere:
                self.partials[0][row], self.partials[1][row] = out[0], lse[0]
            else:
                self._inputs.attended[row : row + 1] = out
