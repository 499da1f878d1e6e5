"""A creditor's layers for one peer, one after another in one call of the native library; see native/exchange.cpp."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from distkv.kernels.attention.attention_metadata import AttentionMetadata
from distkv.kernels.cpu.calls.attend_calls import AttendCalls
from distkv.kernels.cpu.calls.frames import Beginnings, taken_of
from distkv.kernels.cpu.calls.functions import ServeCall, ServeLayer
from distkv.kernels.cpu.calls.library import Native
from distkv.kernels.cpu.calls.travelling import TravellingPartial
from distkv.kernels.exchange import FrameStatus, Served


class NativeGate:
    """See Gate."""

    def __init__(self, native: Native) -> None:
        self._shut, self._word = native.gate_shut, ctypes.c_int32(0)
        self.address = ctypes.addressof(self._word)

    def shut(self) -> bool:
        """See Gate."""
        return bool(self._shut(self.address))


class NativeServeClock:
    """See ServeClock."""

    def __init__(self, native: Native) -> None:
        self._native, self.address = native, native.serve_time_new()

    def begin(self) -> None:
        """See ServeClock."""
        self._native.serve_time_begin(self.address)

    def end(self) -> None:
        """See ServeClock."""
        self._native.serve_time_end(self.address)

    def total_s(self) -> float:
        """See ServeClock."""
        return float(self._native.serve_time_total(self.address))

    def __del__(self) -> None:
        self._native.serve_time_free(self.address)


class NativeServing:
    """See Serving."""

    def __init__(
        self,
        native: Native,
        calls: AttendCalls,
        metadata: AttentionMetadata,
        num_rows: int,
        gate: NativeGate,
        clock: NativeServeClock,
        out_dtype: torch.dtype,
    ) -> None:
        heads, dim = calls.heads, calls.dim
        self._run, self._gate, self._clock, self._metadata = native.serve, gate, clock, metadata
        rows = sum(map(len, metadata.rows))
        self._queries = torch.empty(num_rows, heads, dim, dtype=calls.q_dtype)
        self._partials = TravellingPartial(rows, heads, dim, out_dtype)
        self.query_bytes, self.partial_bytes = self._queries.nbytes, self._partials.flat.nbytes
        self._calls = calls.over(metadata, *self._partials.partial)
        self._layers = (ServeLayer * calls.num_layers)()
        for index, (layer, call) in enumerate(zip(self._layers, self._calls, strict=True)):
            call.q = self._queries.data_ptr()
            layer.attend_call = ctypes.addressof(self._calls) + index * AttendCalls.SIZE
        self._call = ServeCall(
            attend=native.address("attend"),
            layers=ctypes.addressof(self._layers),
            gate=gate.address,
            time=clock.address,
            queries=self._queries.data_ptr(),
            partials=self._partials.flat.data_ptr(),
            wide=self._partials.wide,
            num_halves=self._partials.num_halves,
            num_layers=calls.num_layers,
            query_bytes=self.query_bytes,
            partial_bytes=self.partial_bytes,
        )

    def begin(self, positions: Tensor, expected: Sequence[bytes], answers: Sequence[bytes]) -> None:
        """See Serving."""
        self._metadata = replace(self._metadata, positions=positions)
        self._expected, self._answers = Beginnings(expected), Beginnings(answers)
        address = positions.data_ptr()
        for index, (layer, call) in enumerate(zip(self._layers, self._calls, strict=True)):
            call.q_positions = address
            layer.expected, layer.expected_bytes = self._expected.of(index)
            layer.answer, layer.answer_bytes = self._answers.of(index)
        self._head = ctypes.create_string_buffer(max(map(len, expected)))
        self._call.head = ctypes.addressof(self._head)
        self._call.next = 0

    def run(self, fd: int, received: bytes, idle_s: float, send_s: float) -> Served:
        """See Serving."""
        call = self._call
        if not self._place(received):
            return Served(FrameStatus.OTHER, call.next, received, [])
        call.fd, call.idle_s, call.send_s = fd, idle_s, send_s
        first = call.next
        status = FrameStatus(self._run(ctypes.byref(call)))
        taken = b""
        if status is not FrameStatus.OK and call.received:
            taken = taken_of(call.received, call.head, self._layers[call.next].expected_bytes, call.queries)
        done = self._layers[first : call.next]
        times = [(first + index, one.received_s, one.attended_s) for index, one in enumerate(done)]
        return Served(status, call.next, taken, times)

    def _place(self, received: bytes) -> bool:
        """Put the beginning of the next frame where it belongs; False if it is more than that frame."""
        call = self._call
        call.received = len(received)
        first = self._layers[call.next].expected_bytes
        if len(received) > first + self.query_bytes:
            return False
        ctypes.memmove(call.head, received[:first], min(first, len(received)))
        ctypes.memmove(call.queries, received[first:], max(0, len(received) - first))
        return True
