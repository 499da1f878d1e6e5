from __future__ import annotations

import pytest

from tests.interpreter import find_builtins_once


@pytest.fixture(scope="session", autouse=True)
def interpreted() -> None:
    find_builtins_once()
