from __future__ import annotations

import pytest

from tests.control.cluster.managed import Managed


@pytest.fixture
def managed() -> Managed:
    return Managed()
