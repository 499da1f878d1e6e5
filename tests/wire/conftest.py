from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Channels keep their promises on both loops."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
