from __future__ import annotations

from collections.abc import Iterator

import pytest

from distkv.gateway.prompting import readers
from tests.gateway.prompting.processes import reader_processes


@pytest.fixture
def all_are_long(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(readers, "SHORT_BYTES", 0)
    yield
    assert not reader_processes()
