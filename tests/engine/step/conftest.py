"""An engine on a device that is not the host; modules that want another one have their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoints import variant
from tests.engine.async_device import AsyncHost
from tests.engine.harness import Engine


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return variant(tmp_path_factory.mktemp("checkpoint"), "qwen3")


@pytest.fixture
def device() -> AsyncHost:
    return AsyncHost()


@pytest.fixture
def engine(path: Path, device: AsyncHost) -> Engine:
    return Engine(path, device=device, num_slots=128)
