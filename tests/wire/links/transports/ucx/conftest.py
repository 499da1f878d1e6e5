from __future__ import annotations

import pytest

from tests.wire.links.peers import why_not
from tests.wire.links.transports.ucx.owners import cma_problem


@pytest.fixture
def ucx() -> None:
    """What is tested needs the library, and a kernel that lets it read another process."""
    if why := why_not("ucx") or cma_problem():
        pytest.skip(why)
