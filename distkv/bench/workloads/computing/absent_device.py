"""A GPU that is not there: its host does all that it would do for one, and nothing is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from distkv.engine.device.cpu import CpuDevice
from distkv.engine.device.device import Captured, Run
from distkv.kernels import FusedQkv, LayerKv, Partial
from distkv.kernels.attention.static_decode import StaticDecode, StaticInputs
from distkv.kernels.layer.linear import Linear
from distkv.kernels.layer.ops import TorchOps
from distkv.kernels.mail_table import MailTable
from distkv.kernels.triton.attention.static_decode import TritonStaticDecode
from distkv.kernels.triton.attention.templates import Shape, heuristic
from distkv.kernels.triton.backend import TritonBackend

SMS = 132
"""Multiprocessors of the GPU that is not there: an H100's or H200's."""


class AbsentDevice(CpuDevice):
    """What is captured is computed once and never again. Copies to and from it cost nothing; those of a GPU cost a
    launch each, as every kernel does."""

    is_async = True

    def __init__(self) -> None:
        super().__init__(AbsentBackend())

    def capture(self, run: Run, group: int = 0) -> Captured:
        """See Device."""
        return Captured(_nothing, run())


class AbsentBackend(TritonBackend):
    """Plans attention as Triton's does, and launches none."""

    ops = TorchOps()  # type: ignore[assignment]

    def store(self, qkv: FusedQkv, kv: LayerKv, slots: Tensor, offsets: Tensor) -> Tensor:
        """See Backend: queries, and nothing is stored."""
        return qkv.rotated()[0]

    def linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """See Backend: zeros."""
        return lambda x: x.new_zeros(*x.shape[:-1], len(weight))

    def static_decode(self, inputs: StaticInputs, kv: LayerKv, most_keys: int) -> StaticDecode:
        """See Backend: planned and not launched."""
        shape = Shape.of(inputs.attended, kv.k)
        return _AbsentDecode(inputs, shape, heuristic(shape), SMS, most_keys)

    def merge(self, partials: Sequence[Partial]) -> Partial:
        """See Backend: one of them."""
        return partials[0]

    def post_all(self, table: MailTable, layer: int, q: Tensor) -> None:
        """See Backend: nothing."""

    def take_all(self, table: MailTable, layer: int, out: Tensor, lse: Tensor) -> None:
        """See Backend: nothing."""

    def _launch(self, *launch: Any) -> None:
        """Nothing."""


class _AbsentDecode(TritonStaticDecode):
    def attend(self, q: Tensor, kv: LayerKv, scale: float, window: int | None) -> None:
        """Nothing."""


def _nothing() -> None:
    pass
