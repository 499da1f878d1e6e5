"""A gManager in which a callback of the loop failed is not half alive: it ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from distkv.actors.gmanager.process import run
from distkv.config import GManagerConfig
from tests.waiting import soon


async def test_an_error_of_a_callback_ends_it() -> None:
    def fail() -> None:
        raise ValueError("this one")

    def ready(_facts: dict[str, Any]) -> None:
        asyncio.get_running_loop().call_soon(fail)

    with pytest.raises(ValueError, match="this one"):
        await soon(run(GManagerConfig(port=0), ready, asyncio.Event()))
