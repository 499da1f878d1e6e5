from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.fakes import Elsewhere


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    """Starts fake clusters beside the test's thread."""
    fakes = Elsewhere()
    yield fakes
    fakes.close()
