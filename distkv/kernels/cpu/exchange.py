"""A debtor's layers with keys elsewhere, each in one call of the native library; see native/exchange.cpp."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from distkv.kernels.attention.attention_metadata import AttentionMetadata
from distkv.kernels.cpu.calls.attend_calls import AttendCalls
from distkv.kernels.cpu.calls.frames import Beginnings, taken_of
from distkv.kernels.cpu.calls.functions import ExchangeCall, Peer
from distkv.kernels.cpu.calls.functions import MergeRun as NativeRun
from distkv.kernels.cpu.calls.library import Native
from distkv.kernels.cpu.calls.travelling import TravellingPartial
from distkv.kernels.cpu.serving import NativeGate, NativeServeClock, NativeServing
from distkv.kernels.exchange import Answered, Asked, Exchanged, FrameStatus, Gate, MergeRun, ServeClock

TURN_S = 0.05
"""What a creditor gets at least to hand over what it may have answered while another one was waited for."""


class NativeExchanges:
    """See Exchanges."""

    def __init__(self, native: Native, calls: AttendCalls) -> None:
        self._native, self._calls = native, calls

    def exchange(
        self, metadata: AttentionMetadata, num_rows: int, runs: Sequence[MergeRun], asked: Sequence[Asked]
    ) -> NativeExchange:
        """See Exchanges."""
        return NativeExchange(self._native, self._calls, metadata, num_rows, runs, asked)

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


class NativeExchange:
    """See Exchange."""

    def __init__(
        self,
        native: Native,
        calls: AttendCalls,
        metadata: AttentionMetadata,
        num_rows: int,
        runs: Sequence[MergeRun],
        asked: Sequence[Asked],
    ) -> None:
        heads, dim = calls.heads, calls.dim
        self._run, self._asked, self._metadata, self._dtype = native.exchange, asked, metadata, calls.q_dtype
        self._local = torch.empty(num_rows, heads, dim), torch.empty(num_rows, heads)
        self._merged = torch.empty(num_rows, heads, dim), torch.empty(num_rows, heads)
        self._row_bytes = heads * dim * calls.q_dtype.itemsize
        self._bodies = [TravellingPartial(one.partial_rows, heads, dim, one.out_dtype) for one in asked]
        self._partials = [body.partial for body in self._bodies]
        self._calls, self._attend = calls, calls.one_over(metadata, *self._local)
        self._frames = [Beginnings(one.frames) for one in asked]
        self._expected = [Beginnings(one.expected) for one in asked]
        self._received = [ctypes.create_string_buffer(max(map(len, one.expected))) for one in asked]
        self._peers = (Peer * len(asked))()
        for peer, one, body, head in zip(self._peers, asked, self._bodies, self._received, strict=True):
            peer.fd, peer.patience_s, peer.head = one.fd, one.patience_s, ctypes.addressof(head)
            peer.partials, peer.partial_bytes = body.flat.data_ptr(), body.flat.nbytes
            peer.wide, peer.num_halves = body.wide, body.num_halves
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
            attend_call=ctypes.addressof(self._attend),
            merge=native.address("merge"),
            runs=ctypes.addressof(self._runs),
            outs=ctypes.addressof(self._outs),
            lses=ctypes.addressof(self._lses),
            peers=ctypes.addressof(self._peers),
            num_runs=len(runs),
            num_peers=len(asked),
            dim=dim,
            turn_s=TURN_S,
        )

    def __call__(self, layer: int, q: Tensor) -> Exchanged:
        """See Exchange."""
        q = q.contiguous()
        kept = [self._ask(index, layer, q) for index in range(len(self._asked))]
        call = self._call
        self._attend.q = q.data_ptr()
        self._attend.k, self._attend.v, self._attend.window = self._calls.of_layer(layer)
        out_of_memory = self._run(ctypes.byref(call))
        del kept
        if out_of_memory:
            raise MemoryError("micro-attention found no memory for its partials")
        answers = [self._answer(index) for index in range(len(self._asked))]
        merged = None if call.failed else self._merged[0]
        times = call.sent_s, call.attended_s, call.collected_s, call.merged_s
        return Exchanged(merged, self._local, answers, *times)

    def _ask(self, index: int, layer: int, q: Tensor) -> Tensor:
        """What the peer's queries point to."""
        peer, rows = self._peers[index], self._asked[index].rows
        peer.frame, peer.frame_bytes = self._frames[index].of(layer)
        peer.expected, peer.expected_bytes = self._expected[index].of(layer)
        if isinstance(rows, slice):
            peer.queries = q.data_ptr() + rows.start * self._row_bytes
            peer.query_bytes = (rows.stop - rows.start) * self._row_bytes
            return q
        picked = q[rows]
        peer.queries, peer.query_bytes = picked.data_ptr(), picked.nbytes
        return picked

    def _answer(self, index: int) -> Answered:
        peer = self._peers[index]
        status = FrameStatus(peer.status)
        taken = b"" if status is FrameStatus.OK else self._taken(peer)
        times = peer.asked_s, peer.sent_s, peer.waits_s, peer.answered_s
        return Answered(status, self._partials[index], taken, *times)

    @staticmethod
    def _taken(peer: Peer) -> bytes:
        return taken_of(peer.received, peer.head, peer.expected_bytes, peer.partials)
