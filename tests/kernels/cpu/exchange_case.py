"""Layers of a small pool, for the native calls of a debtor and a creditor; the test has the other end of a socket."""

from __future__ import annotations

import socket

import torch
from torch import Tensor

from distkv.kernels import AttentionMetadata, BlockTable, PanelKv, Partial
from distkv.kernels.cpu.calls.library import installed
from distkv.kernels.cpu.native_backend import NativeBackend
from distkv.kernels.exchange import Asked, Exchange, Exchanges, MergeRun

HEADS, KV_HEADS, DIM, BLOCK, BLOCKS, LAYERS, ROWS = 4, 2, 16, 16, 3, 2, 3
QUERY_BYTES = ROWS * HEADS * DIM * 4
PARTIAL_BYTES = ROWS * HEADS * (DIM + 1) * 4
DEADLINE_S = 30.0
QUERIES = [b"a queries beginning %d" % layer for layer in range(LAYERS)]
PARTIALS = [b"a partials beginning %d" % layer for layer in range(LAYERS)]
POSITIONS = torch.tensor([10, 30, 47])

backends = [NativeBackend(native) for native in installed().levels.values() if native.has_exchange]
usable = [backend for backend in backends if backend.name in installed().machine]


class Case:
    """A pool of a few layers, and what attention over it gives."""

    def __init__(self, backend: NativeBackend) -> None:
        generator = torch.Generator().manual_seed(1)
        size = BLOCKS, KV_HEADS, BLOCK * DIM
        self.backend = backend
        self.layers = [
            PanelKv.of(torch.randn(size, generator=generator), torch.randn(size, generator=generator), DIM, BLOCK)
            for _ in range(LAYERS)
        ]
        self.q = torch.randn(ROWS, HEADS, DIM, generator=generator)
        table = BlockTable([2, 0, 1], [0, BLOCK, 2 * BLOCK], BLOCKS * BLOCK, BLOCK)
        self.metadata = AttentionMetadata((range(ROWS),), (table,), POSITIONS)
        found = backend.exchanges(self.layers, (None,) * LAYERS, 0.25, HEADS, torch.float32)
        assert found is not None
        self.exchanges: Exchanges = found

    def partial(self, layer: int) -> Partial:
        return self.backend.attend(self.q, self.layers[layer], self.metadata, 0.25)


def body(*tensors: Tensor) -> bytes:
    return b"".join(tensor.contiguous().numpy().tobytes() for tensor in tensors)


def received(sock: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += sock.recv(size - len(found))
    return found


def exchange(case: Case, here: socket.socket, patience_s: float = DEADLINE_S) -> Exchange:
    runs = [MergeRun(0, ROWS, ((1, 0), (0, 0)))]
    asked = Asked(here.fileno(), slice(0, ROWS), ROWS, QUERIES, PARTIALS, patience_s)
    return case.exchanges.exchange(case.metadata, ROWS, runs, [asked])
