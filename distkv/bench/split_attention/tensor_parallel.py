"""Tensor parallelism by heads, as in Megatron-LM: each process has all keys of its heads and attends with these; then
all get all outputs.

The hidden vector is there in every process before attention, so no query travels. After it stands an all-reduce, behind
the projection of the output. That projection is no part of attention, so the outputs of the heads are gathered instead:
no head-partitioned layer sends less, and the all-reduce sends at least twice as much.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from distkv.bench.split_attention.split import Share, Split
from distkv.bench.split_attention.ways import OUT_DTYPES, Link
from distkv.engine.attention.bodies import OUT_DTYPES as TORCH_DTYPES
from distkv.engine.attention.bodies import body_of
from distkv.kernels import Backend

PATIENCE_S = 60
_SMALL_BYTES = 1 << 16
"""So much a socket takes, whether or not its peer reads."""


class HeadParallel:
    """A Way. socks: plain stream sockets to all the other processes, by their number."""

    def __init__(
        self, split: Split, process: int, share: Share, backend: Backend, socks: Mapping[int, socket.socket], link: Link
    ) -> None:
        self._split, self._process, self._share, self._backend = split, process, share, backend
        heads = split.heads_of(process)
        self._queries = [q[:, heads.start : heads.stop].contiguous() for q in split.queries()]
        self._gather = AllGather(process, socks)
        dtype = TORCH_DTYPES[OUT_DTYPES[link]]
        self._gathered = torch.full(
            (split.layers, split.processes, split.rows, len(heads), split.dim), torch.nan, dtype=dtype
        )
        self._parts = [[body_of(part) for part in layer] for layer in self._gathered]
        self.sent_bytes = 0

    @property
    def outputs(self) -> Tensor:
        """See Way."""
        return self._gathered.transpose(1, 2).flatten(2, 3).float()

    def step(self, layers: int) -> float:
        """See Way."""
        scale = self._share.config.scale
        self._gather.barrier()
        started_s = time.perf_counter()
        for layer in range(layers):
            kv = self._share.pool.layer(layer)
            out, _ = self._backend.attend(self._queries[layer], kv, self._share.metadata, scale)
            self._gathered[layer, self._process] = out
            self._gather(self._parts[layer])
        took_s = time.perf_counter() - started_s
        own_bytes = self._parts[0][self._process].nbytes
        self.sent_bytes = layers * own_bytes * (self._split.processes - 1)
        return took_s


class AllGather:
    """Parts of equal size from every process to every process, in one hop. Used by one thread."""

    def __init__(self, process: int, socks: Mapping[int, socket.socket]) -> None:
        self._process, self._socks = process, socks
        for sock in socks.values():
            sock.settimeout(None)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", PATIENCE_S, 0))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", PATIENCE_S, 0))
        self._senders = ThreadPoolExecutor(max(1, len(socks)), thread_name_prefix="all-gather")

    def __call__(self, parts: list[memoryview]) -> None:
        """parts: of each process in order; the own one is sent, the others are filled. Raises OSError, and EOFError
        where a process has ended."""
        own = parts[self._process]
        sending: list[Future[None]] = []
        for sock in self._socks.values():
            if own.nbytes <= _SMALL_BYTES:
                sock.sendall(own)
            else:
                sending.append(self._senders.submit(sock.sendall, own))
        for process, sock in self._socks.items():
            part = parts[process]
            if sock.recv_into(part, part.nbytes, socket.MSG_WAITALL) < part.nbytes:
                raise EOFError(f"process {process} has ended")
        for one in sending:
            one.result()

    def barrier(self) -> None:
        """Until all processes are here."""
        self([memoryview(bytearray(1)) for _ in range(len(self._socks) + 1)])

    def close(self) -> None:
        """End the threads that send."""
        self._senders.shutdown()
