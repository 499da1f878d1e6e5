"""Memory of the host that a GPU reaches; torch and CUDA are stood in for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from distkv.engine.device.cuda import CudaDevice


def test_it_is_pinned_and_given_back_by_the_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread whose current GPU is another one would have CUDA make a context there."""
    here, calls = [0], []

    @contextmanager
    def device(place: torch.device) -> Iterator[None]:
        before, here[0] = here[0], place.index
        yield
        here[0] = before

    class Runtime:
        def cudaHostRegister(self, address: int, num_bytes: int, flags: int) -> int:
            calls.append(("pinned", address, here[0]))
            return 0

        def cudaHostUnregister(self, address: int) -> int:
            calls.append(("given back", address, here[0]))
            return 0

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "cudart", Runtime)
    cuda = object.__new__(CudaDevice)
    cuda.place = torch.device("cuda", 1)
    shared = cuda.share(memoryview(bytearray(64)))
    assert shared is not None
    address = shared.data_ptr()
    del shared
    assert calls == [("pinned", address, 1), ("given back", address, 1)]
