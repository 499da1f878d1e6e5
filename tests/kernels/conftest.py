from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from distkv.kernels import Backend
from distkv.kernels.cpu.backends import backend_of
from distkv.kernels.cpu.dispatch import available, choose


@pytest.fixture(autouse=True, scope="session")
def one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", params=available())
def backend(request: pytest.FixtureRequest) -> Backend:
    """Every backend that this machine can run."""
    return backend_of(choose(request.param))
