from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from distkv.actors.task_scope import task_scope


@pytest.fixture
async def tasks() -> AsyncIterator[asyncio.TaskGroup]:
    """As an actor has them: what fails in one of them fails the test."""
    async with task_scope() as tasks:
        yield tasks
