"""An engine, creditors x and y that map mailboxes, and a request of whose blocks they hold some."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.actors.worker.links.mailboxes.creditors import Creditors
from tests.checkpoints import variant
from tests.engine.async_device import AsyncHost
from tests.engine.harness import Engine
from tests.engine.lent import Lent


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return variant(tmp_path_factory.mktemp("checkpoint"), "qwen3")


@pytest.fixture
def engine(path: Path) -> Engine:
    return Engine(path, device=AsyncHost(), num_slots=128)


@pytest.fixture
def creditors(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Creditors]:
    creditors = Creditors(engine, monkeypatch)
    yield creditors
    creditors.close()


@pytest.fixture(params=[True, False], ids=["called", "captured"])
def lent(request: pytest.FixtureRequest, engine: Engine, creditors: Creditors) -> Lent:
    """One whose position 48 is computed, with gaps between own blocks, and without: then a step is one graph. Both
    creditors listen."""
    lent = Lent(engine, gaps=request.param)
    creditors.add("x")
    creditors.add("y")
    engine.run(lent.step(48, 49))
    return lent
