"""A debtor's layers with keys elsewhere in calls of the native library; see native/exchange.cpp."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from distkv.kernels.attention.attention_metadata import AttentionMetadata
from distkv.kernels.cpu.calls.attend_calls import AttendCalls
from distkv.kernels.cpu.calls.frames import Beginnings, taken_of
from distkv.kernels.cpu.calls.functions import ExchangeCall, LayersCall, LayerTimes, Peer, PeerTimes
from distkv.kernels.cpu.calls.functions import MergeRun as NativeRun
from distkv.kernels.cpu.calls.library import Native
from distkv.kernels.cpu.calls.travelling import TravellingPartial
from distkv.kernels.cpu.serving import NativeGate, NativeServeClock, NativeServing
from distkv.kernels.exchange import Answered, Asked, Exchanged, FrameStatus, Gate, MergeRun, ServeClock

TURN_S = 0.05
"""What a creditor gets at least to hand over what it may have answered while another one was waited for."""


class NativeExchanges:
    """See Exchanges. What `exchange` returns is used by the thread that calls it, one after the other."""

    def __init__(self, native: Native, calls: AttendCalls) -> None:
        self._native, self._calls = native, calls
        self._last: NativeExchange | None = None

    def exchange(
        self, metadata: AttentionMetadata, num_rows: int, runs: Sequence[MergeRun], asked: Sequence[Asked]
    ) -> NativeExchange:
        """See Exchanges. From step to step decodes have the same shape, and then the same memory."""
        shape = ExchangeShape(num_rows, tuple(runs), tuple(map(_peer_shape, asked)))
        if self._last is None or self._last.shape != shape:
            self._last = None  # two of large chunks need not have memory at the same time
            self._last = NativeExchange(self._native, self._calls, shape)
        self._last.begin(metadata, asked)
        return self._last

    def clock(self) -> NativeServeClock:
        """See Exchanges."""
        return NativeServeClock(self._native)

    def gate(self) -> NativeGate:
        """See Exchanges."""
        return NativeGate(self._native)

    def serving(
        self,
        metadata: AttentionMetadata,
        num_rows: int,
        gate: Gate,
        clock: ServeClock,
        out_dtype: torch.dtype = torch.float32,
    ) -> NativeServing:
        """See Exchanges."""
        assert isinstance(gate, NativeGate) and isinstance(clock, NativeServeClock)
        return NativeServing(self._native, self._calls, metadata, num_rows, gate, clock, out_dtype)


class PeerShape(NamedTuple):
    """What is alike from step to step of what a creditor is asked for. rows: (first, end), or each of them."""

    rows: tuple[int, int] | bytes
    partial_rows: int
    out_dtype: torch.dtype


class ExchangeShape(NamedTuple):
    """What is alike from step to step of an exchange."""

    num_rows: int
    runs: tuple[MergeRun, ...]
    peers: tuple[PeerShape, ...]


class NativeExchange:
    """See Exchange. It is for one step after another, each of which begins with `begin`."""

    def __init__(self, native: Native, calls: AttendCalls, shape: ExchangeShape) -> None:
        heads, dim, num_rows, runs = calls.heads, calls.dim, shape.num_rows, shape.runs
        self.shape = shape
        self._run, self._function, self._calls = native.exchange, native.address("exchange"), calls
        self._local = torch.empty(num_rows, heads, dim), torch.empty(num_rows, heads)
        self._merged = torch.empty(num_rows, heads, dim), torch.empty(num_rows, heads)
        self._row_bytes = heads * dim * calls.q_dtype.itemsize
        self._bodies = [TravellingPartial(one.partial_rows, heads, dim, one.out_dtype) for one in shape.peers]
        self._partials = [body.partial for body in self._bodies]
        self._times = (LayerTimes * calls.num_layers)()
        self._peer_times = [(PeerTimes * calls.num_layers)() for _ in shape.peers]
        self._peers = (Peer * len(shape.peers))()
        for peer, body, times in zip(self._peers, self._bodies, self._peer_times, strict=True):
            peer.partials, peer.partial_bytes = body.flat.data_ptr(), body.flat.nbytes
            peer.wide, peer.num_halves = body.wide, body.num_halves
            peer.times = ctypes.addressof(times)
        parts = [part for run in runs for part in run.parts]
        sources = [(out.data_ptr(), lse.data_ptr()) for out, lse in (self._local, *self._partials)]
        pointers = ctypes.c_void_p * len(parts)
        self._outs = pointers(*(sources[source][0] + row * heads * dim * 4 for source, row in parts))
        self._lses = pointers(*(sources[source][1] + row * heads * 4 for source, row in parts))
        out, lse = self._merged[0].data_ptr(), self._merged[1].data_ptr()
        firsts = accumulate((len(run.parts) for run in runs), initial=0)
        self._runs = (NativeRun * len(runs))()
        for native_run, run, first in zip(self._runs, runs, firsts, strict=False):
            native_run.first, native_run.count, native_run.rows = first, len(run.parts), run.num_rows * heads
            native_run.out, native_run.lse = out + run.row * heads * dim * 4, lse + run.row * heads * 4
        self._call = ExchangeCall(
            attend=native.address("attend"),
            merge=native.address("merge"),
            runs=ctypes.addressof(self._runs),
            outs=ctypes.addressof(self._outs),
            lses=ctypes.addressof(self._lses),
            peers=ctypes.addressof(self._peers),
            times=ctypes.addressof(self._times),
            num_runs=len(runs),
            num_peers=len(shape.peers),
            row_bytes=self._row_bytes,
            dim=dim,
            turn_s=TURN_S,
        )

    def begin(self, metadata: AttentionMetadata, asked: Sequence[Asked]) -> None:
        """The layers of a step, whose shape is that of this exchange."""
        self._kept, self._attend = (asked, metadata), self._calls.one_over(metadata, *self._local)
        self._frames = [Beginnings(one.frames) for one in asked]
        self._expected = [Beginnings(one.expected) for one in asked]
        self._received = [ctypes.create_string_buffer(max(map(len, one.expected))) for one in asked]
        self._picked: list[Tensor] = []
        for index, (peer, one) in enumerate(zip(self._peers, asked, strict=True)):
            peer.fd, peer.patience_s = one.fd, one.patience_s
            peer.frames = self._frames[index].address
            peer.expected = self._expected[index].address
            peer.head = ctypes.addressof(self._received[index])
            if isinstance(one.rows, slice):
                peer.rows, peer.first_row, peer.num_rows = None, one.rows.start, one.rows.stop - one.rows.start
            else:
                picked = torch.empty(len(one.rows) * self._row_bytes, dtype=torch.uint8)
                peer.rows, peer.num_rows, peer.picked = one.rows.data_ptr(), len(one.rows), picked.data_ptr()
                self._picked.append(picked)

    def __call__(self, layer: int, q: Tensor) -> Exchanged:
        """See Exchange."""
        q = q.contiguous()
        self._attend.q = q.data_ptr()
        self._attend.k, self._attend.v, self._attend.window = self._calls.of_layer(layer)
        found = self._run(ctypes.byref(self._call), layer, q.data_ptr(), ctypes.addressof(self._attend))
        if found == 1:
            raise MemoryError("micro-attention found no memory for its partials")
        return self.exchanged(layer, is_done=not found)

    def have_done(self, call: LayersCall) -> None:
        """Let a call over all layers do this in each of them; its metadata is that of this exchange."""
        call.exchange, call.exchange_call = self._function, ctypes.addressof(self._call)
        call.local, call.local_lse = (one.data_ptr() for one in self._local)
        call.merged = self._merged[0].data_ptr()

    def exchanged(self, layer: int, *, is_done: bool) -> Exchanged:
        """What a layer came to. is_done: nothing failed in it; else it is the last one that ran."""
        times = self._times[layer]
        return Exchanged(
            self._merged[0] if is_done else None,
            self._local,
            [self._answer(index, layer, is_done) for index in range(len(self._peers))],
            times.sent_s,
            times.attended_s,
            times.collected_s,
            times.merged_s,
        )

    def _answer(self, index: int, layer: int, is_done: bool) -> Answered:
        peer, times = self._peers[index], self._peer_times[index][layer]
        status, taken = FrameStatus.OK if is_done else FrameStatus(peer.status), b""
        if status is not FrameStatus.OK:
            taken = taken_of(peer.received, peer.head, self._expected[index].of(layer)[1], peer.partials)
        return Answered(
            status, self._partials[index], taken, times.asked_s, times.sent_s, times.waits_s, times.answered_s
        )


def _peer_shape(asked: Asked) -> PeerShape:
    rows = asked.rows
    found = (rows.start, rows.stop) if isinstance(rows, slice) else rows.numpy().tobytes()
    return PeerShape(found, asked.partial_rows, asked.out_dtype)
