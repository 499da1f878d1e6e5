from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.fakes import BackgroundFakes


@pytest.fixture
def background() -> Iterator[BackgroundFakes]:
    """Starts fake clusters beside the test's thread."""
    fakes = BackgroundFakes()
    yield fakes
    fakes.close()
