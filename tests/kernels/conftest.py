from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from distkv.kernels import Backend
from distkv.kernels.cpu.dispatch import available, backend_of, choose
from tests.interpreter import find_builtins_once

ENDLESS = 2**31 - 1
SLOW_INTERPRETED: dict[str, Callable[[dict[str, Any]], bool]] = {
    "test_queries_and_stored_tokens": lambda case: case["num_rows"] > 9 or case["dtype"] == torch.float16,
    "test_head_groups_and_storage_types": lambda case: case["dim"] != 10 or case["dtype"] != torch.float32,
    "test_one_token": lambda case: case["slots"] == (2, 3, 4),
    "test_contexts_grow_under_one_plan": lambda case: case["num_sms"] < (6 if case["most_keys"] == ENDLESS else 4),
    "test_shapes_of_real_models": lambda case: case["block_tokens"] != 48 or case["dtype"] == torch.float32,
}
"""Cases that Triton's interpreter takes long for, of tests whose other cases it runs by default."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where there is a GPU, Triton's tests run on it; where there is none, the long ones are slow."""
    for item in items:
        case = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        runs_triton = case.get("backend") == "triton" or "device" in getattr(item, "fixturenames", ())
        if runs_triton and torch.cuda.is_available():
            item.add_marker(pytest.mark.gpu)
        elif runs_triton and SLOW_INTERPRETED.get(getattr(item, "originalname", ""), lambda _case: False)(case):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def interpreted() -> None:
    find_builtins_once()


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where Triton's kernels run: the GPU, or interpreted on the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(scope="session", params=[*available(), "triton"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Every backend that this machine can run."""
    if request.param != "triton":
        return backend_of(choose(request.param))
    pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'gpu'")
    from distkv.kernels.triton.backend import TritonBackend

    return TritonBackend()
