"""Own steps and peers at the same time, over the same threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from distkv.kernels import AttentionMetadata, BlockTable
from distkv.kernels.cpu.dispatch import choose
from distkv.kernels.cpu.native_backend import NativeBackend
from tests.kernels.layers import layer_of

CALLERS, CALLS = 4, 60


@pytest.fixture
def backend() -> Iterator[NativeBackend]:
    native = choose().native
    if native is None:
        pytest.skip("the native library is not built")
    backend = NativeBackend(native)
    backend.use_threads(3, ())
    yield backend
    backend.use_threads(1, ())


def test_callers_at_the_same_time_get_their_own_results(backend: NativeBackend) -> None:
    generator = torch.Generator().manual_seed(0)
    k, v = (torch.randn(64, 2, 16, 32, generator=generator) for _ in range(2))
    kv, blocks = layer_of(backend, k, v), BlockTable(tuple(range(64)), tuple(range(0, 1024, 16)), 1024, 16)
    queries = [torch.randn(rows, 8, 32, generator=generator) for rows in (1, 1, 5, 40)]
    asked = [AttentionMetadata((range(len(q)),), (blocks,), torch.arange(1024 - len(q), 1024)) for q in queries]
    alone = [backend.attend(q, kv, metadata, 0.2) for q, metadata in zip(queries, asked, strict=True)]
    wrong: list[int] = []
    start = threading.Barrier(CALLERS)

    def call(index: int) -> None:
        start.wait(10)
        for _ in range(CALLS):
            out, lse = backend.attend(queries[index], kv, asked[index], 0.2, serving=index != 0)
            merged = backend.merge([(out, lse), (out, lse)])[0]
            if not (torch.equal(out, alone[index][0]) and torch.equal(lse, alone[index][1])):
                wrong.append(index)
            if not torch.allclose(merged, out, rtol=1e-6, atol=1e-6):
                wrong.append(index)

    callers = [threading.Thread(target=call, args=(index,)) for index in range(CALLERS)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert not any(caller.is_alive() for caller in callers)
    assert wrong == []
